"""Models, losses and metrics."""
