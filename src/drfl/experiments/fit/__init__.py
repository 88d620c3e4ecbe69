"""Fit one model: train a portfolio, choose by the worst client, and train the choice on all rows."""
