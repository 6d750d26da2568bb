"""Buckets of S3, Google Cloud Storage and Azure."""
