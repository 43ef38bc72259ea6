"""Completions that reuse saves, methods compared at equal budgets."""
