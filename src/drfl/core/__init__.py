"""Foundations that all of drfl uses: random keys, errors, argument checks and file access."""
