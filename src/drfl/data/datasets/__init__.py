"""The data sets that drfl knows by name."""
