"""Rollouts: the engine protocol, the engines, and weights on their way to servers. No JAX."""
