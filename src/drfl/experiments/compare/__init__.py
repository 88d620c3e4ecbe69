"""Comparisons of several algorithms and seeds."""
