"""Flax train state, the jitted update, metrics, warm start and checkpoints."""
