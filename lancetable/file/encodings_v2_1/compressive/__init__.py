"""Arms of CompressiveEncoding: how values become bytes."""
