"""What a run is asked for: options, their bounds and their conditions."""
