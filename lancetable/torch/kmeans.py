"""Stub of a pylance module that is out of scope. Its import raises an ImportError with the reason."""

from lancetable import scope

raise scope.missing_module(__name__, scope.TORCH)
