"""Training on completions that were drawn once, beside fresh ones."""
