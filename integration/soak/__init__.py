"""Long run of several processes on one table, with kills and request faults; see `__main__`."""
