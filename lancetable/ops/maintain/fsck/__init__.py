"""Check and repair of a whole table."""
