"""Rewards: the pool of processes that runs functions with TRL's signature, math-verify; no JAX."""
