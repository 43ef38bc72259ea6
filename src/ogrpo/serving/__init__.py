"""The decoder on both sides of the HTTP bridge, and the command that serves it."""
