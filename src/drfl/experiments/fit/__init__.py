"""Fit one defensible model: try a portfolio, choose by the worst client, and train the choice on all rows."""
