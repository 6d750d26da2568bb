"""Servers for tests: real servers, emulators, and emulators that ignore preconditions.

Each server listens on a free port of the loopback interface. Every module has a context manager that starts its server
and stops it by its process handle.
"""
