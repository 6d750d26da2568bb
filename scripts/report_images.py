"""Screenshots of a report for the documentation. Run by scripts/report_images.

The table is a copy of the demo's table before its compaction, with a tag, an index, and rows that the index lacks.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo-data" / "flights.lance"
WIDTH, HEIGHT = 1120, 1060
START = {"light": "", "dark": "#fragments"}  # parts of the document at the top of the images
sys.path.insert(0, str(ROOT))

import lancetable
from tests.report import browser


def main() -> int:
    if not DEMO.exists():
        raise SystemExit("demo-data/flights.lance does not exist: run scripts/demo")
    images = ROOT / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, browser.chromium() as driver:
        os.chdir(directory)
        shutil.copytree(DEMO, "flights.lance")
        table = lancetable.dataset("flights.lance")
        table.tags.create("year-end", 12)
        table.checkout_version(14).restore()
        table.checkout_latest()
        table.create_scalar_index("time_hour", "BTREE")
        table.insert(table.to_table(limit=3000))
        table.report().save("report.html")
        for scheme, start in START.items():
            browser.set_scheme(driver, scheme)
            browser.resize(driver, WIDTH, HEIGHT)
            driver.get(f"{Path('report.html').resolve().as_uri()}{start}")
            driver.save_screenshot(str(images / f"report-{scheme}.png"))
    for image in sorted(images.glob("report-*.png")):
        print(f"{image.relative_to(ROOT)}: {image.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
