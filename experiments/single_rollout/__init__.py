"""One completion a prompt, with baselines that need no siblings, beside groups."""
