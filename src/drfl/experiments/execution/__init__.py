"""Run cells and other calls in worker processes or on Ray, and store the results."""
