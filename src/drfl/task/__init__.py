"""The model, its loss and its metrics."""
