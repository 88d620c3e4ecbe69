"""Adapters of other frameworks to one job, for ``benchmarks/peers.py``; each runs in its own environment."""
