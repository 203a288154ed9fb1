"""A real browser for the tests of pages."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium; where there is none the test is skipped, or fails with WEFT_BROWSER=required."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    why = "" if found else "no Chromium is installed (apt-get install chromium)"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        why = "playwright is not installed (pip install playwright)"
    if why and os.environ.get("WEFT_BROWSER") == "required":
        pytest.fail(f"WEFT_BROWSER=required, and {why}")
    if why:
        pytest.skip(why)
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Opens pages and notes what they say, ask for and pop up."""
    contexts = []

    def opened(address, *, width=1200, height=900, **more):
        context = browser.new_context(viewport={"width": width, "height": height}, **more)
        contexts.append(context)
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (page.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
