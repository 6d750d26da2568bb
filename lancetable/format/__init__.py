"""Value types of the table format, with their conversion to and from protobuf, and its naming rules. No I/O."""
