"""Fair choice of hyperparameters: as many trials for every algorithm, judged on rows held out of the training data."""
