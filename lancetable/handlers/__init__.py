"""Commit handlers: look-up of versions, and exactly-once publication of the next version."""
