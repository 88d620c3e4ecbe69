"""What test results allow to be said about the worst client, with what probability: intervals, sets and tests.

Its modules are imported one by one, as scipy takes a while to load: :mod:`drfl.assessment.clients` has the whole.
"""
