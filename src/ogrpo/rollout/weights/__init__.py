"""Weights on their way to a server: releases in folders, and a share to pull them from."""
