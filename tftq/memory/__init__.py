"""Memory: counted, recorded phase by phase, and planned."""
