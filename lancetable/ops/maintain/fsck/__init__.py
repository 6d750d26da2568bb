"""Check and repair of tables."""
