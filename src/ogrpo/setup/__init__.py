"""The parts of a run, built from its config once."""
