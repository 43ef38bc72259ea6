"""Tokenizers, batching and the replay buffer: numpy, Arrow and tokenizers, no JAX."""
