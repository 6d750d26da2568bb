"""Servers for tests: real ones, correct emulators, and some that ignore conditions, each on a free loopback port.

Every module has a context manager that starts its server and stops it by its own handle.
"""
