"""Configurations of runs, and the objects that they build."""
