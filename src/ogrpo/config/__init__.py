"""The configuration of a run: options, their bounds and their conditions."""
