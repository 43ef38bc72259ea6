"""Capacity plans: memory and seconds of a step."""
