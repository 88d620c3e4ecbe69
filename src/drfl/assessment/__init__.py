"""Confidence intervals, sets and tests for the worst client, computed from test results.

The modules are imported one by one because scipy is slow to load. Start with :mod:`drfl.assessment.clients`.
"""
