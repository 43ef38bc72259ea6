"""The staleness that samples may have by scheme and learning rate, and which signal warns first."""
