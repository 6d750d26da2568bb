"""Building and maintenance of secondary indexes."""
