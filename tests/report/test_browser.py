"""Reports in Chromium: no errors, no requests, no foreign scripts; keyboard, small screens, and accessibility."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lancetable as lance
from tests.report import browser
from tests.report.report_tables import hostile_table, maintained_table, many_fragments

pytestmark = pytest.mark.skipif(
    not browser.is_installed(), reason="no chromium or no chromedriver: run scripts/ensure_browser"
)
DEMO = Path(__file__).parents[2] / "demo-data" / "flights.lance"
TABLES = ["maintained", "many", "hostile", "demo"]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser.chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="module", params=TABLES)
def page(request: pytest.FixtureRequest, directory: Path) -> Path:
    return page_of(request.param, directory)


def page_of(name: str, directory: Path) -> Path:
    """Return the report of a table as an HTML file."""
    path = directory / f"{name}.html"
    if name == "demo" and not DEMO.exists():
        pytest.skip("no demo-data: run scripts/demo")
    if not path.exists():
        make = {
            "maintained": lambda: maintained_table(directory / "maintained.lance"),
            "many": lambda: many_fragments(directory / "many.lance"),
            "hostile": lambda: hostile_table(directory),
            "demo": lambda: lance.dataset(DEMO),
        }[name]
        make().report().save(path)
    return path


def open_page(driver: Any, page: Path, width: int = 1280) -> None:
    browser.resize(driver, width)
    driver.get_log("browser")
    driver.get(page.as_uri())


def select(driver: Any, selector: str) -> list[Any]:
    from selenium.webdriver.common.by import By

    found: list[Any] = driver.find_elements(By.CSS_SELECTOR, selector)
    return found


def column_texts(driver: Any, table: str, column: int) -> list[str]:
    """Return the texts of a column of a table."""
    script = "return [...document.querySelectorAll(arguments[0])].map(cell => cell.textContent)"
    found: list[str] = driver.execute_script(script, f"#{table} tbody tr > :nth-child({column})")
    return found


def press(driver: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def test_page_has_no_errors_and_no_requests(driver: Any, page: Path) -> None:
    open_page(driver, page)
    assert driver.get_log("browser") == []
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert select(driver, "#fragments-table tbody tr") and select(driver, "thead button")


def test_names_in_the_table_run_no_script(driver: Any, page: Path) -> None:
    open_page(driver, page)
    assert driver.title.endswith(": table report")
    scripts = "return [...document.scripts].map(script => script.type)"
    assert driver.execute_script(scripts) == ["application/json", ""]
    attributes = "return [...document.querySelectorAll('*')].flatMap(element => element.getAttributeNames())"
    assert not [name for name in driver.execute_script(attributes) if name.startswith("on") or name == "style"]
    assert select(driver, "img, iframe, object, embed, link, base, form, a[href^='javascript']") == []


def test_other_scripts_are_refused_by_the_policy(driver: Any, directory: Path) -> None:
    page = page_of("maintained", directory)
    changed = directory / "injected.html"
    document = page.read_text(encoding="utf-8")
    changed.write_text(document.replace("<main>", "<main><script>document.title = 'hacked'</script>"), encoding="utf-8")
    open_page(driver, changed)
    assert driver.title != "hacked"
    assert "Content Security Policy" in driver.get_log("browser")[0]["message"]


@pytest.mark.skipif(not browser.AXE.exists(), reason="no axe-core: run scripts/ensure_browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_accessibility_has_no_serious_violation(driver: Any, page: Path, scheme: str, width: int) -> None:
    browser.set_scheme(driver, scheme)
    open_page(driver, page, width)
    assert browser.serious_violations(driver) == []


def test_page_fits_a_narrow_screen(driver: Any, page: Path) -> None:
    open_page(driver, page, 400)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 400


def test_columns_are_sorted_with_the_keyboard(driver: Any, directory: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(driver, page_of("many", directory))
    assert column_texts(driver, "fragments-table", 1)[0] == "1"
    buttons = select(driver, "#fragments-table thead button")
    driver.execute_script("arguments[0].focus()", buttons[0])
    press(driver, Keys.TAB)
    assert driver.switch_to.active_element == buttons[1]
    assert driver.execute_script("return getComputedStyle(arguments[0]).outlineStyle", buttons[1]) == "solid"
    press(driver, Keys.ENTER)
    assert select(driver, "#fragments-table th[aria-sort=descending]")[0].text.startswith("Rows")
    assert set(column_texts(driver, "fragments-table", 2)) == {"700"}
    press(driver, Keys.SPACE)
    assert set(column_texts(driver, "fragments-table", 2)) == {"1"}
    assert len(select(driver, "#fragments-table [aria-sort]")) == 1


def test_pages_are_turned_with_the_keyboard(driver: Any, directory: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(driver, page_of("many", directory))
    first, back, ahead, last = select(driver, "[data-table=fragments-table] .pager button")
    status = select(driver, "[data-table=fragments-table] [role=status]")[0]
    assert status.text == "Rows 1 to 50 of 10,000"
    assert [button.get_attribute("aria-disabled") for button in (first, back, ahead)] == ["true", "true", "false"]
    back.send_keys(Keys.ENTER)
    assert status.text == "Rows 1 to 50 of 10,000"
    ahead.send_keys(Keys.ENTER)
    assert column_texts(driver, "fragments-table", 1)[0] == "51" and status.text == "Rows 51 to 100 of 10,000"
    last.send_keys(Keys.ENTER)
    assert column_texts(driver, "fragments-table", 1)[-1] == "10000"
    assert ahead.get_attribute("aria-disabled") == "true" and driver.switch_to.active_element == last
    back.send_keys(Keys.SPACE)
    assert column_texts(driver, "fragments-table", 1)[0] == "9901"
    assert len(select(driver, "#fragments-table tbody tr")) == 50


def test_rows_are_filtered_by_text(driver: Any, directory: Path) -> None:
    open_page(driver, page_of("many", directory))
    (field,) = select(driver, "[data-table=fragments-table] input")
    field.send_keys("9999")
    assert column_texts(driver, "fragments-table", 1) == ["9999"]
    field.send_keys("nothing")
    assert column_texts(driver, "fragments-table", 1) == []
    assert select(driver, "[data-table=fragments-table] [role=status]")[0].text == "No rows of 0"


def test_unknown_values_are_sorted_last(driver: Any, directory: Path) -> None:
    open_page(driver, page_of("maintained", directory))
    header = select(driver, "#versions-table thead button")[4]
    assert header.text.startswith("Change")
    for _ in range(2):
        header.click()
        assert column_texts(driver, "versions-table", 5)[-1] == "–"


def test_a_data_file_is_chosen_with_the_keyboard(driver: Any, directory: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(driver, page_of("maintained", directory))
    shown = "return [...document.querySelectorAll('details.file')].findIndex(file => !file.hidden)"
    assert driver.execute_script(shown) == 0
    select(driver, "#file-choice")[0].send_keys(Keys.ARROW_DOWN)
    assert driver.execute_script(shown) == 1
    assert len([file for file in select(driver, "details.file") if file.is_displayed()]) == 1


def test_commands_can_be_copied(driver: Any, directory: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    open_page(driver, page_of("maintained", directory))
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": permissions})
    command, button = select(driver, ".command")[0], select(driver, ".command button")[0]
    assert button.get_attribute("aria-label") == f"Copy the command: {command.text.splitlines()[0]}"
    button.click()
    WebDriverWait(driver, 10).until(lambda _: button.text == "Copied")
    copied = driver.execute_async_script("navigator.clipboard.readText().then(arguments[0], arguments[0])")
    assert copied == select(driver, ".command code")[0].text


def test_content_is_visible_without_scripts(driver: Any, directory: Path) -> None:
    page = page_of("many", directory)
    browser.set_scripts(driver, False)
    try:
        open_page(driver, page)
        assert len(select(driver, "#fragments-table tbody tr")) == 50
        assert select(driver, ".rest")[0].text.startswith("Rows 1 to 50 of 10,000.")
        assert not select(driver, "button, select, input")
        files = select(driver, "details.file")
        assert len(files) == 8 and all(file.is_displayed() for file in files)
        files[1].find_element("css selector", "summary").click()
        assert files[1].get_attribute("open")
        assert select(driver, "svg rect")
    finally:
        browser.set_scripts(driver, True)


def test_a_notebook_shows_the_report_in_a_frame(driver: Any, directory: Path) -> None:
    report = maintained_table(directory / "notebook.lance").report()
    page = directory / "notebook.html"
    title = html.escape(report.overview.uri)
    page.write_text(f"<!DOCTYPE html><html lang=en><title>{title}</title><h1>N</h1>{report._repr_html_()}")
    open_page(driver, page)
    driver.switch_to.frame(select(driver, "iframe")[0])
    assert len(column_texts(driver, "versions-table", 1)) == 6 and select(driver, "thead button")
    driver.switch_to.default_content()
    assert [entry for entry in driver.get_log("browser") if "srcdoc" in entry["message"]] == []
    assert driver.execute_script("return getComputedStyle(document.body).margin") == "8px"
