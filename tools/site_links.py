"""Broken links of the built site: ``python -m tools.site_links build/site``.

Prints each link to a page, picture or anchor that does not exist, and everything that a page would
load from the network, and exits with 1 if there is one. ``make docs`` runs it.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

# Its links begin at the root of a server.
SKIPPED = "404.html"
_NETWORK = ("http:", "https:", "//")
_ELSEWHERE = (*_NETWORK, "mailto:", "data:", "javascript:")


class HtmlPage(HTMLParser):
    """The anchors and links of a page.

    Attributes
    ----------
    anchors : set of str
        Values of `id` and of the `name` of links.
    links : list of str
        Addresses that a reader follows.
    resources : list of str
        Addresses that a browser loads with the page.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses and anchors of a tag."""
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if "href" in values:
            is_loaded = tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload")
            (self.resources if is_loaded else self.links).append(values["href"])
        if "src" in values:
            self.resources.append(values["src"])


def find_broken(site: Path) -> Iterator[str]:
    """Yield a line for each link or resource of a site that does not work."""
    paths = [path for path in sorted(site.rglob("*.html")) if path.name != SKIPPED]
    pages = {path.resolve(): HtmlPage(path.read_text(encoding="utf-8")) for path in paths}
    for path, page in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        yield from (
            f"{name}: loads {address} from the network"
            for address in page.resources
            if address.startswith(_NETWORK)
        )
        for address in dict.fromkeys([*page.links, *page.resources]):
            if not address.startswith(_ELSEWHERE) and not _is_working(address, path, pages):
                yield f"{name}: broken link {address}"


def _is_working(address: str, path: Path, pages: dict[Path, HtmlPage]) -> bool:
    file, anchor = map(unquote, urldefrag(address))
    target = (path.parent / file.partition("?")[0]).resolve() if file else path
    if target not in pages:
        return target.is_file() and not anchor
    return not anchor or anchor in pages[target].anchors


def main() -> int:
    """Check the site in the folder that the first argument names."""
    problems = list(find_broken(Path(sys.argv[1])))
    print(*problems, f"{len(problems)} broken links", sep="\n")  # noqa: T201
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
