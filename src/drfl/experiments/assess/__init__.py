"""Assessments of finished runs."""
