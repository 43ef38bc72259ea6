"""Clipping against importance weights, and weights in trust regions."""
