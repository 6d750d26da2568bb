"""Secondary indexes: their files, the searches that they answer, and the rows that they name."""
