"""Lance versioned tables in Python."""
