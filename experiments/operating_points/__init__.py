"""Which buffer, sampler, replay ratio and controller for which budget."""
