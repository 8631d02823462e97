"""Several exported models under one memory budget, and one answer of theirs at every bar."""
