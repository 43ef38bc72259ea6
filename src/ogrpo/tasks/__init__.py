"""Tasks: prompts, gold answers and rewards, from files of one's own or official ones; no JAX."""
