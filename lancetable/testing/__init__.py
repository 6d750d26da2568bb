"""Helpers for tests of lancetable and of third-party stores and handlers. No other package imports this one."""
