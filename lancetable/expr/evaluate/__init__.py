"""Evaluation of typed expressions over Arrow data."""
