"""Servers for tests: real ones, honest stand-ins, and some that lie. Each listens on a free port of the loopback.

Every module has a context manager that starts its server and stops it by its own handle.
"""
