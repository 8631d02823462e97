"""The recipe: its schema and how it is loaded."""
