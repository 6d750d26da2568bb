"""Found before pylance where `tests/upstream/path` is on the path of modules: `import lance` means lancetable."""

import stand_in

stand_in.install()
