"""Version 2 blobs: descriptions, writers and storage."""
