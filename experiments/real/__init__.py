"""`real`: what the claims of the small decoder show on a real language model."""
