"""Sweeps: runs over a grid or a list of settings in one pool, and tables of their results."""
