"""Object stores: range reads, whole-object writes and, where the storage supports it, atomic create-if-absent."""
