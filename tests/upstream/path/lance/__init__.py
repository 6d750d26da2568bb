"""Package found before pylance if `tests/upstream/path` is on the module path: `import lance` imports lancetable."""

import stand_in

stand_in.install()
