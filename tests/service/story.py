"""The pages in a real browser: what every page must keep, and the story of one erasure."""

import os
import re
from pathlib import Path
from typing import Any

from tests.service.servers import DeskServer

__all__ = ["MODEL", "PERSON", "BrowserLog", "BrowserStory", "faults_of", "flip_a_byte"]

MODEL = "example-forest"
PERSON = "person-0002"
PATIENCE = 60_000.0
WIDE, NARROW = 1240, 400
HEIGHT = 800
THEMES = ("light", "dark")
# What a browser says while the server is being killed.
OUTAGE = ("ERR_CONNECTION", "ERR_EMPTY_RESPONSE", "htmx:sendError", "htmx:afterRequest")

# Returns what is wrong with the page as it is shown now, in words.
_FAULTS = """
() => {
  const faults = [];
  const width = document.documentElement.clientWidth;
  const name = (one) => `${one.tagName.toLowerCase()}.${one.className.baseVal ?? one.className} `
    + `"${(one.textContent || "").trim().slice(0, 30)}"`;
  const isShown = (one) => one.checkVisibility({ opacityProperty: true, visibilityProperty: true })
    && one.getBoundingClientRect().width > 1;
  const scrolls = (one) => ["auto", "scroll", "hidden", "clip"].includes(
    getComputedStyle(one).overflowX);
  const isInScroller = (one) => {
    for (let up = one.parentElement; up && up !== document.body; up = up.parentElement)
      if (scrolls(up)) return true;
    return false;
  };
  if (document.documentElement.scrollWidth > width)
    faults.push(`scrolls sideways: ${document.documentElement.scrollWidth} of ${width}`);
  const all = [...document.body.querySelectorAll("*")].filter(isShown);
  for (const one of all) {
    const box = one.getBoundingClientRect();
    if ((box.right > width + 1 || box.left < -1) && !one.closest("svg svg, .visually-hidden, .skip")
        && !isInScroller(one)) faults.push(`sticks out: ${name(one)}`);
  }
  for (const one of all.filter((one) => one.matches("input, select, textarea, button, a[href]"))) {
    if (one.type === "hidden") continue;
    const words = [one.ariaLabel, one.textContent, one.title, ...[...(one.labels ?? [])].map(
      (label) => label.textContent), ...[...one.querySelectorAll("[aria-label]")].map(
      (inner) => inner.ariaLabel)].join("").trim();
    if (!words) faults.push(`has no name: ${name(one)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at)))
    faults.push(`id twice: ${id}`);
  const heads = document.querySelectorAll("h1").length;
  if (heads !== 1) faults.push(`${heads} main headings`);

  const channels = (text) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.canvas.width = canvas.canvas.height = 1;
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const known = new Map();
  const colour = (text) => {
    if (!known.has(text)) known.set(text, channels(text));
    return known.get(text);
  };
  const over = (top, below) => {
    const share = top[3] / 255;
    return [0, 1, 2].map((at) => top[at] * share + below[at] * (1 - share)).concat(255);
  };
  const behind = (one) => {
    const layers = [];
    for (let up = one; up; up = up.parentElement) {
      const found = colour(getComputedStyle(up).backgroundColor);
      if (found[3]) layers.push(found);
      if (found[3] === 255) break;
    }
    const page = colour(getComputedStyle(document.documentElement).backgroundColor);
    return layers.reverse().reduce((below, top) => over(top, below), page[3] ? page
      : colour("Canvas"));
  };
  const light = (found) => {
    const [r, g, b] = found.slice(0, 3).map((one) => one / 255).map(
      (one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (const one of all) {
    const hasText = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || one.closest("svg, [disabled], option, .visually-hidden, .skip")) continue;
    const style = getComputedStyle(one);
    const below = behind(one);
    const [high, low] = [light(over(colour(style.color), below)), light(below)].sort(
      (a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) faults.push(`contrast ${ratio.toFixed(2)}: ${name(one)}`);
  }
  return [...new Set(faults)];
}
"""


def faults_of(page: Any) -> list[str]:
    """Return what is wrong with a page as it is shown now.

    It scrolls sideways, something sticks out of it, a control has no name, an id stands twice, it
    has no main heading, or a text has less contrast than WCAG 2.2 AA asks for.
    """
    violations: list[str] = page.evaluate(_FAULTS)
    return violations


class BrowserLog:
    """Notices errors on pages of a context, and whatever is fetched from elsewhere.

    Parameters
    ----------
    context : BrowserContext
        The browser's profile to be watched.
    url : str
        Address of the desk.
    """

    def __init__(self, context: Any, url: str) -> None:
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        self.url = url
        context.on("console", self._said)
        context.on("weberror", lambda error: self.errors.append(str(error.error)))
        context.on("request", self._asked)
        context.on("response", self._answered)

    def _said(self, message: Any) -> None:
        is_outage = any(words in message.text for words in OUTAGE)
        if message.type in ("error", "warning") and not is_outage:
            self.errors.append(f"{message.type}: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((f"{self.url}/", "data:", "about:", "blob:")):
            self.elsewhere.append(request.url)

    def _answered(self, response: Any) -> None:
        if response.status >= 500:
            self.errors.append(f"{response.status} {response.url}")


class BrowserStory:
    """A server and a browser that visits page after page and checks each.

    Parameters
    ----------
    server : Server
        A desk that runs.
    browser : Browser
        Chromium.
    """

    def __init__(self, server: DeskServer, browser: Any) -> None:
        self.server = server
        self.url = server.url
        self.faults: list[str] = []
        self.seen: set[str] = set()
        self.watches: list[BrowserLog] = []
        self._browser = browser
        self._n_looks = 0
        self._pictures = os.environ.get("LETHEON_PICTURES")

    def page(self, *, is_watched: bool = True, **given: Any) -> Any:
        """Return a page in a profile of its own."""
        context = self._browser.new_context(viewport={"width": WIDE, "height": HEIGHT}, **given)
        context.set_default_timeout(PATIENCE)
        if is_watched:
            self.watches.append(BrowserLog(context, self.url))
        return context.new_page()

    def log_in(self, page: Any, role: str) -> None:
        """Log in with the token of a role."""
        page.goto(f"{self.url}/login")
        page.get_by_label("Token").fill(self.server.tokens[role])
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{self.url}/")

    def look(self, page: Any, name: str) -> None:
        """Look at the present page, wide and narrow, in one theme each; in both for pictures."""
        self.seen.add(_path(page.url, self.url))
        self._n_looks += 1
        for number, width in enumerate((WIDE, NARROW)):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            theme = THEMES[(number + self._n_looks) % 2]
            for theme_item in THEMES if self._pictures else (theme,):
                page.emulate_media(color_scheme=theme_item, reduced_motion="reduce")
                faults = faults_of(page)
                self.faults += [f"{name}, {theme_item}, {width}: {item}" for item in faults]
                self._keep(page, f"{name}-{theme_item}-{width}.png")
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        page.set_viewport_size({"width": WIDE, "height": HEIGHT})

    def _keep(self, page: Any, name: str) -> None:
        if self._pictures:
            Path(self._pictures).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(Path(self._pictures) / name), full_page=True)

    def visit(self, page: Any, path: str, name: str) -> None:
        """Go to a page and look at it."""
        page.goto(self.url + path)
        self.look(page, name)

    def restart(self) -> None:
        """Kill server and worker, and start them again where they were."""
        self.server.restart()
        assert self.server.url == self.url

    def errors(self) -> list[str]:
        return [error for watch in self.watches for error in watch.errors]

    def elsewhere(self) -> list[str]:
        return [item for watch in self.watches for item in watch.elsewhere]


def _path(url: str, base: str) -> str:
    return re.sub(r"[?#].*", "", url.removeprefix(base)) or "/"


def flip_a_byte(home: Path) -> Path:
    """Change one bit of the largest blob in the folder of a ledger; return its path."""
    blobs = [path for path in (home / "blobs").rglob("*") if path.is_file()]
    path = max(blobs, key=lambda blob: blob.stat().st_size)
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path
