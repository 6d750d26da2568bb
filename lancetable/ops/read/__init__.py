"""Scans, takes, samples and what they share."""
