"""Tasks, tokenizers and batching: numpy and tokenizers, no JAX."""
