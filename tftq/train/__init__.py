"""Training: the loop and what it drives."""
