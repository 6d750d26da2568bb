"""Added, changed and dropped columns; table settings."""
