"""Distributionally robust federated learning."""
