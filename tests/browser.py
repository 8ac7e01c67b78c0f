"""A real browser for tests: Debian's Chromium, driven by Playwright.

Missing: a failure where ``CI=true``, else a skip that says what to install.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["MISSING", "chromium", "find_chromium"]

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MISSING = (
    "The pages are NOT TESTED in a browser: no chromium in PATH. Debian: apt-get install chromium "
    "(make setup does this as root)."
)


def find_chromium() -> str | None:
    """Return the program, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser without a window; skip or fail where there is none."""
    program = find_chromium()
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    # Nothing of the browser itself may call home; a container has a small /dev/shm.
    flags = [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-first-run",
    ]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        try:
            yield browser
        finally:
            browser.close()
