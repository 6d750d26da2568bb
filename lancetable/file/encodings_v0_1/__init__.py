"""Pages of 0.1 files: batches of rows, a page for each field in each batch."""
