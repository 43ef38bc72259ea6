"""Buffers, samplers, replay ratios and controllers, each for its budget."""
