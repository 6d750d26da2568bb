"""Schema changes: added, altered and dropped columns; config and metadata of tables."""
