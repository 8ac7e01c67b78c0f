"""Take the screenshots of the desk in ``docs/images``, in light and dark mode.

Run ``python docs/make_screens.py`` after changing the pages. It needs the extra ``service``, the
package playwright, and Chromium from the operating system. The screenshots show the example ledger
of ``letheon serve --demo``, created in a temporary directory; no network connection is used.
"""

import argparse
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from letheon.demo.desk import DemoInfo, make_demo
from letheon.ledger import Ledger
from letheon.service import create_app

IMAGES = Path(__file__).resolve().parent / "images"
THEMES = ("light", "dark")
SIZE = {"width": 1240, "height": 780}
NARROW = {"width": 400, "height": 780}
COLOURS = 255
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# Where each screenshot starts; FIRST has the selector of a link to follow from there.
PLACES = {
    "home": "/",
    "requests": "/requests",
    "request": "/requests?state=closed",
    "model": "/models",
    "plan": "/models",
    "certificate": "/certificates",
    "audit": "/audits",
    "residue": "/residue",
}
FIRST = {
    "request": 'th.main-cell a[href^="/requests/"]',
    "model": 'a[href*="/models/credit"]',
    "plan": 'a[href*="/models/credit"]',
    "certificate": 'main a[href^="/certificates/"]',
    "audit": 'main a[href^="/audits/"]',
}


@contextmanager
def demo_desk() -> Iterator[tuple[str, DemoInfo]]:
    """Serve the example ledger; yield its address and access data."""
    with tempfile.TemporaryDirectory() as folder:
        demo = make_demo(Path(folder) / "demo")
        with Ledger.open(Path(folder) / "demo") as ledger, socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            app = create_app(ledger, is_demo=True)
            server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
            thread.start()
            while not server.started:
                time.sleep(0.05)
            yield f"http://localhost:{bound.getsockname()[1]}", demo
            server.should_exit = True
            thread.join()


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a browser: Chromium from the operating system."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("chromium is not in PATH; on Debian: apt-get install chromium")
    flags = ["--disable-background-networking", "--no-first-run"]
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=flags)
        yield opened
        opened.close()


def log_in(page: Any, address: str, token: str) -> None:
    """Log a page in."""
    page.goto(f"{address}/login")
    page.fill("input[name=token]", token)
    page.click("main button")
    page.wait_for_selector(".side-nav")


def go_to(page: Any, address: str, name: str) -> None:
    """Open the page of a screenshot, from the list that links to it."""
    page.goto(address + PLACES[name])
    if name in FIRST:
        page.goto(address + page.locator(FIRST[name]).first.get_attribute("href"))
    if name == "plan":
        page.goto(page.url.partition("?")[0] + "/plan")
    page.wait_for_timeout(400)


def keep(picture: bytes, path: Path) -> None:
    """Write a screenshot with few colours, so that the file is small and text is sharp."""
    image = Image.open(BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Take the screenshots."""
    parser = argparse.ArgumentParser(description="Take the screenshots of the desk.")
    parser.add_argument("names", nargs="*", help=f"any of: {', '.join(PLACES)}, receipt, narrow")
    wanted = parser.parse_args().names or [*PLACES, "receipt", "narrow"]
    IMAGES.mkdir(exist_ok=True)
    with demo_desk() as (address, demo), browser() as chromium:
        for theme in THEMES:
            page = chromium.new_context(viewport=SIZE, color_scheme=theme).new_page()
            log_in(page, address, demo.tokens["admin"])
            for name in wanted:
                if name == "receipt":
                    page.goto(f"{address}/receipt")
                    page.fill("main textarea", demo.receipt_code)
                    page.click("main form button")
                    page.wait_for_timeout(400)
                elif name == "narrow":
                    page.set_viewport_size(NARROW)
                    go_to(page, address, "requests")
                else:
                    go_to(page, address, name)
                keep(page.screenshot(), IMAGES / f"desk-{name}-{theme}.png")
                page.set_viewport_size(SIZE)


if __name__ == "__main__":
    main()
