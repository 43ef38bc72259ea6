"""Studies over one training loop, and the command line that runs them."""
