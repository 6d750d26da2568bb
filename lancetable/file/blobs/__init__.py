"""Version 2 blobs: descriptors, writers and storage."""
