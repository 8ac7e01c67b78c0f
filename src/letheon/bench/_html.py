"""The report of a benchmark as one page that opens without a network."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from letheon.bench._html_cells import table_html
from letheon.bench._html_figures import figure_html

__all__ = ["report_html", "write_report"]

# The policy makes the browser refuse whatever is not in the file.
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'unsafe-inline'; script-src '$script_hash'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header>
<h1>$title</h1>
$summary
<nav aria-label="Contents"><ul>
$contents
</ul></nav>
</header>
<main>
$sections
</main>
<script>$script</script>
</body>
</html>
""")


def write_report(path: str | Path, report: Mapping[str, Any]) -> Path:
    """Write the report of a benchmark as one HTML file.

    Parameters
    ----------
    path : path
        Where to write; missing folders are made.
    report : mapping
        `title`; and as far as there is something to say `summary` (texts), `table` (the main
        one), `figures`, `tables`, `notes` (texts), `settings` and `machine` (mappings). See
        `report_html`.

    Returns
    -------
    Path
        The file.
    """
    file = Path(path)
    page = report_html(report)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    return file


def report_html(report: Mapping[str, Any]) -> str:
    """Return the page: style, pictures and the script that sorts tables are in it.

    Parameters
    ----------
    report : mapping
        As for `write_report`. A table has `title`, `columns`, `rows` and `note`: a column is a
        name or a pair (group, name), a cell None, a text, a number, a `Measure`, or a mapping
        with `value`, `published`, `note` and `kind` ("good", "bad" or "quiet"). A figure has
        `figure` (of matplotlib, or a text in SVG), `title`, `alt` and `note`. Every text is
        escaped.

    Examples
    --------
    >>> page = report_html({"title": "a < b", "notes": ["nothing was run"]})
    >>> "<h1>a &lt; b</h1>" in page, "nothing was run" in page
    (True, True)
    """
    sections = {name: body for name, body in _sections(report) if body}
    script = _resource("_html.js")
    return _PAGE.substitute(
        title=escape(str(report["title"])),
        summary=_paragraphs(report.get("summary")),
        contents="\n".join(
            f'<li><a href="#{_key(name)}">{escape(name)}</a></li>' for name in sections
        ),
        sections="\n".join(
            f'<section aria-labelledby="{_key(name)}"><h2 id="{_key(name)}">{escape(name)}</h2>\n'
            f"{body}\n</section>"
            for name, body in sections.items()
        ),
        style=_resource("_html.css"),
        script=script,
        script_hash=_hash(script),
    )


def _sections(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the HTML of each section, empty where the report is silent."""
    main = report.get("table")
    yield "Results", "" if main is None else table_html(main, "main")
    yield "Figures", "\n".join(figure_html(figure) for figure in report.get("figures") or ())
    tables = enumerate(report.get("tables") or (), 1)
    yield "Tables", "\n".join(table_html(table, f"table-{number}") for number, table in tables)
    yield "Notes", _list(report.get("notes"))
    yield "Settings", _definitions(report.get("settings"))
    yield "Machine", _definitions(report.get("machine"))


def _texts(texts: str | Iterable[Any] | None) -> list[str]:
    return [texts] if isinstance(texts, str) else [str(text) for text in texts or ()]


def _paragraphs(texts: str | Iterable[Any] | None) -> str:
    return "\n".join(f"<p>{escape(text)}</p>" for text in _texts(texts))


def _list(texts: str | Iterable[Any] | None) -> str:
    items = "\n".join(f"<li>{escape(text)}</li>" for text in _texts(texts))
    return f"<ul>\n{items}\n</ul>" if items else ""


def _definitions(values: Mapping[str, Any] | None) -> str:
    items = "\n".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape(_words(value))}</dd>"
        for name, value in (values or {}).items()
    )
    return f"<dl>\n{items}\n</dl>" if items else ""


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_words(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(_words(inner) for inner in value)
    return str(value)


def _key(name: str) -> str:
    return f"section-{name.lower()}"


def _resource(name: str) -> str:
    return files("letheon.bench").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the name by which the policy knows a script."""
    return f"sha256-{b64encode(sha256(text.encode('utf-8')).digest()).decode('ascii')}"
