"""How many completions reuse saves, methods compared at equal budgets."""
