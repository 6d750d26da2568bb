"""Chromium for the tests of reports, driven by Debian's chromedriver. Installed by scripts/ensure_browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parents[2] / ".venv-browser" / "node_modules" / "axe-core" / "axe.min.js"


def is_installed() -> bool:
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


@contextmanager
def chromium() -> Iterator[Any]:
    """Run a headless browser without access to the network. Skips the test if there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no chromium or no chromedriver: run scripts/ensure_browser")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    opened.set_script_timeout(300)  # axe-core takes long if other processes use all cores
    try:
        yield opened
    finally:
        opened.quit()


def resize(driver: Any, width: int, height: int = 1000) -> None:
    """Set the size of the page, which a headless window does not have below 500 pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def set_scheme(driver: Any, scheme: str) -> None:
    """Select the light or dark colours."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def set_scripts(driver: Any, enabled: bool) -> None:
    """Enable or disable scripts of pages that are opened afterwards."""
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not enabled})


def serious_violations(driver: Any) -> list[str]:
    """Return the rules of axe-core with serious or critical violations, and the first elements."""
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    result = driver.execute_async_script("axe.run().then(arguments[0], error => arguments[0]({error: String(error)}))")
    assert "error" not in result, result["error"]
    return [
        f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in result["violations"]
        if each["impact"] in ("serious", "critical")
    ]
