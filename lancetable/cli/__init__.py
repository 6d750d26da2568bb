"""Command line `lancetable`, which inspects and maintains tables and data files."""
