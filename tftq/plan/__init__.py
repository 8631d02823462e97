"""Memory that a recipe will need, computed before it runs."""
