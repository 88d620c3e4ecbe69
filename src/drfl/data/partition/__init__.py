"""Partitions of a data set among clients."""
