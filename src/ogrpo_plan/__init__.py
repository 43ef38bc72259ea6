"""Capacity plans: memory, seconds of a step, and schedules that keep both sides busy."""
