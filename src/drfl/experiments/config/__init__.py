"""Configurations, and what they build."""
