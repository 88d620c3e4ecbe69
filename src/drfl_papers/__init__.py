"""Specifications, runs and tables for the papers' tables and figures."""
