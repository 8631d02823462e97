"""Run several exported models under one memory budget, and combine their answers on every bar."""
