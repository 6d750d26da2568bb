"""Scans, takes and samples, and their shared projections, orders and pruning."""
