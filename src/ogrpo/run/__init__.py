"""A run under way: its folder, checkpoints, signals, records and ending."""
