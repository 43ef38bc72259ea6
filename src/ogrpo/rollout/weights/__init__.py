"""Weights on their way to a server: releases in folders, what changed between them, a share."""
