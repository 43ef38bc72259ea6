"""Verifiable rewards: math-verify under a time bound, no JAX."""
