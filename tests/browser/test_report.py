"""The report in a real browser: nothing fails, nothing leaves, nothing runs that should not."""

import os
import shutil

import numpy as np
import pandas as pd
import pytest

from tests.unit.report.report_trees import HOSTILE, hostile, regression
from zoo.report import render_comparison, render_report

pytestmark = pytest.mark.browser

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def unavailable(reason):
    if os.environ.get("ZOO_REQUIRE_ALL_DEPS") == "1":
        pytest.fail(f"{reason}, but ZOO_REQUIRE_ALL_DEPS=1 asks for it")
    pytest.skip(f"{reason}: the report is not tested in a browser")


@pytest.fixture(scope="module")
def browser():
    found = os.environ.get("ZOO_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        unavailable("no Chromium on the PATH or in ZOO_CHROMIUM")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("playwright is not installed")
    with sync_playwright() as driver:
        # Every launch gets a new, empty profile.
        chromium = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """A page that was opened, and everything that happened on the way."""

    def __init__(self, context, path):
        self.messages, self.requests = [], []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: self._dialog(dialog))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri(), wait_until="load")
        self.path = path

    def _dialog(self, dialog):
        self.messages.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def column(self, caption, number):
        """Return the texts of a column of the table with this caption."""
        return self.page.evaluate(
            """([caption, number]) => [...document.querySelectorAll("table")]
                .find((table) => table.caption.textContent === caption)
                .querySelectorAll(`tbody td:nth-child(${number})`).values()
                .map((cell) => cell.textContent.trim()).toArray()""",
            [caption, number],
        )

    def sort(self, caption, header):
        self.page.locator("table", has=self.page.locator(f"caption:text-is('{caption}')")).locator(
            "th button", has_text=header
        ).click()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    tree, truth = regression(mean_field=True)
    table = pd.DataFrame(
        {"verdict": ["ok", "fail", "warn"], "nll": [10.0, 9.0, np.nan]}, index=["b", HOSTILE, "a"]
    )
    differences = pd.DataFrame({"difference": [0, 1, 2], "error": [0, 1, 1]}, index=table.index)
    pages = {
        "report": render_report(tree, truth),
        "hostile": render_report(hostile()),
        "comparison": render_comparison(table, {HOSTILE: differences}),
    }
    for name, page in pages.items():
        (directory / f"{name}.html").write_text(page, encoding="utf-8")
    return directory


@pytest.fixture
def visit(browser, files):
    contexts = []

    def open_page(name, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        return Visit(context, files / f"{name}.html")

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", ["report", "hostile", "comparison"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_error_and_no_request(visit, name, scheme):
    seen = visit(name, color_scheme=scheme)
    assert seen.messages == []
    assert seen.requests == [seen.path.as_uri()]


@pytest.mark.parametrize("name", ["report", "hostile", "comparison"])
def test_every_figure_is_drawn(visit, name):
    seen = visit(name)
    sizes = seen.page.evaluate(
        """() => [...document.querySelectorAll("figure svg")].map((svg) => {
            const box = svg.getBoundingClientRect();
            return [box.width, box.height, svg.querySelectorAll("path, use").length];
        })"""
    )
    assert len(sizes) >= (1 if name == "comparison" else 15)
    for width, height, shapes in sizes:
        assert width > 200
        assert height > 50
        assert shapes > 5
    images = "() => [...document.images].filter((image) => !image.naturalWidth).length"
    assert seen.page.evaluate(images) == 0


def test_colours_follow_the_scheme(visit):
    def colours(seen):
        return seen.page.evaluate(
            """() => [getComputedStyle(document.body).backgroundColor,
                getComputedStyle(document.querySelector("figure svg text")).fill]"""
        )

    light, dark = (colours(visit("report", color_scheme=s)) for s in ("light", "dark"))
    assert light[0] == "rgb(255, 255, 255)"
    assert brightness(light[0]) > 200 > 120 > brightness(light[1])
    assert brightness(dark[0]) < 50 < 120 < brightness(dark[1])
    printed = visit("report", color_scheme="dark")
    printed.page.emulate_media(media="print", color_scheme="dark")
    assert colours(printed) == light


def brightness(colour):
    return np.mean([float(part) for part in colour.strip("rgba()").split(",")[:3]])


@pytest.mark.parametrize("name", ["report", "hostile", "comparison"])
@pytest.mark.parametrize("width", [320, 400, 1100])
def test_the_page_itself_does_not_scroll_sideways(visit, name, width):
    seen = visit(name, viewport={"width": width, "height": 800})
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("media", ["screen", "print"])
def test_every_row_of_figures_is_as_wide_as_the_page(visit, media):
    seen = visit("report", viewport={"width": 1100, "height": 800})
    seen.page.emulate_media(media=media)
    ends = seen.page.evaluate(
        """() => [...document.querySelectorAll("figure")].map((figure) => {
            const right = (node) => node.getBoundingClientRect().right;
            const page = right(figure.closest(".pictures")), left = figure.className === "half";
            const pair = left ? [figure.previousElementSibling, figure.nextElementSibling] : [];
            const beside = pair.filter((other) => other?.className === "half").length;
            const filled = Math.max(...[...figure.children].map(right)) / page;
            return left ? beside > 0 : filled > 0.7;
        })"""
    )
    assert len(ends) > 8
    assert all(ends)


def test_scripts_in_names_did_not_run(visit):
    seen = visit("hostile")
    assert seen.messages == []
    assert seen.page.title() == f"{HOSTILE} on {HOSTILE}"
    assert seen.page.locator("script").count() == 1
    assert seen.page.locator("h1").inner_text() == f"{HOSTILE} on {HOSTILE}"


def test_the_policy_stops_a_script_that_got_in(browser, files, tmp_path):
    attacked = (files / "report.html").read_text().replace("<h1>", "<script>alert(1)</script><h1>")
    path = tmp_path / "attacked.html"
    path.write_text(attacked)
    context = browser.new_context()
    seen = Visit(context, path)
    context.close()
    assert len(seen.messages) == 1
    assert "Content Security Policy" in seen.messages[0]


def test_clicking_a_header_sorts_numbers(visit):
    seen = visit("report")
    before = seen.column("All checks", 4)
    header = "table.long th:nth-child(4)"
    seen.sort("All checks", "value")
    assert seen.page.get_attribute(header, "aria-sort") == "ascending"
    rising = [float(text) for text in seen.column("All checks", 4) if text != "–"]
    assert rising == sorted(rising)
    assert sorted(seen.column("All checks", 4)) == sorted(before)
    seen.sort("All checks", "value")
    assert seen.page.get_attribute(header, "aria-sort") == "descending"
    falling = [float(text) for text in seen.column("All checks", 4) if text != "–"]
    assert falling == sorted(falling, reverse=True)


def test_levels_sort_by_seriousness(visit):
    seen = visit("report")
    seen.sort("All checks", "result")
    order = ["✓Passed", "iNote", "?Not checked", "!Warning", "✕Failed"]
    places = [order.index(text) for text in seen.column("All checks", 1)]
    assert places == sorted(places)
    assert {0, 1, 3, 4} <= set(places)


def test_missing_values_stay_at_the_end(visit):
    seen = visit("comparison")
    seen.sort("Runs", "nll")
    assert seen.column("Runs", 3) == ["9", "10", "–"]
    seen.sort("Runs", "nll")
    assert seen.column("Runs", 3) == ["10", "9", "–"]


def test_tables_sort_by_keyboard(visit):
    seen = visit("comparison")
    seen.page.locator("th button").first.focus()
    seen.page.keyboard.press("Enter")
    assert seen.column("Runs", 1) == [HOSTILE, "a", "b"]
    assert seen.page.get_attribute("th >> nth=0", "aria-sort") == "ascending"
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("Space")
    assert seen.page.get_attribute("th >> nth=0", "aria-sort") is None
    assert seen.column("Runs", 2) == ["✓Passed", "!Warning", "✕Failed"]


def test_the_page_is_whole_without_scripts(visit):
    seen = visit("report", java_script_enabled=False)
    assert seen.page.locator("table.long tbody tr").count() > 30
    assert seen.page.locator("th button").count() == 0
