"""Pages of the reference that are generated from the library when the documentation is built."""
