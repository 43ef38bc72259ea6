"""How stale samples may be by scheme and learning rate, and which signal warns first."""
