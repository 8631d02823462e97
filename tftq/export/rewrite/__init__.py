"""Passes that rewrite an exported graph."""
