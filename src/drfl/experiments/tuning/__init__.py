"""Fair choice of hyperparameters: the same number of trials per algorithm, scored on validation data."""
