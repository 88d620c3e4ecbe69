"""The loop that runs an algorithm, with everything it keeps and returns."""
