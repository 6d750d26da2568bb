"""A module of pylance that is out of scope: importing it raises an ImportError that states the reason."""

from lancetable import scope

raise scope.missing_module(__name__)
