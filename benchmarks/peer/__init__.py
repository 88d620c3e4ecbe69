"""Adapters of other frameworks to one job, for ``benchmarks/peers.py``; each runs in an environment of its own."""
