"""The papers' claims, each decided by a rule from the stored results."""
