"""Pictures of the report, inside the page."""

import io
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from typing import Any

__all__ = ["figure_html"]

_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def figure_html(figure: Mapping[str, Any]) -> str:
    """Return one picture as HTML.

    The picture is an image, not a part of the page: a browser runs no script and loads nothing
    from inside an image, and the ids of two pictures cannot meet.

    Parameters
    ----------
    figure : mapping
        `figure` (a matplotlib figure or a text in SVG), `title`, `alt` (what somebody who cannot
        see it should know; by default the title) and perhaps `note`.
    """
    title = str(figure.get("title", ""))
    alt = escape(str(figure.get("alt") or title))
    note = figure.get("note")
    data = b64encode(_svg(figure["figure"]).encode("utf-8")).decode("ascii")
    under = f'<span class="note">{escape(str(note))}</span>' if note else ""
    return (
        f'<figure><div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}">'
        f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}"></div>\n'
        f"<figcaption>{escape(title)}{under}</figcaption></figure>"
    )


def _svg(figure: Any) -> str:
    """Return the picture from its root element on: a page needs no prologue."""
    text = figure if isinstance(figure, str) else _drawn(figure)
    start = text.find("<svg")
    if start < 0:
        raise ValueError("a figure must be a matplotlib figure or a text with <svg> in it")
    return text[start:]


def _drawn(figure: Any) -> str:
    """Return a matplotlib figure as SVG: the same bytes each time, letters as shapes."""
    import matplotlib as mpl

    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "letheon", "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", facecolor="white", metadata=_METADATA)
    return file.getvalue()
