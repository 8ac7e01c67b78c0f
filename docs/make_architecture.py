"""Draw the diagrams of README.md and architecture.md: `docs/images/*.svg`.

Packages and their order come from the layers that import-linter enforces (pyproject.toml), so the
diagram always matches the code. Run ``python docs/make_architecture.py`` after a change; a test
checks that the files are up to date.
"""

import re
import tomllib
from html import escape
from pathlib import Path

from letheon.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH, ROW, GAP, BOX = 960, 46, 8, 30
STYLE = """\
<style>
  text { font: 13px system-ui, sans-serif; fill: #1f2937 }
  .note { fill: #6b7280; font-size: 12px }
  rect { fill: #eef2ff; stroke: #6366f1; rx: 6 }
  rect.store { fill: #ecfdf5; stroke: #059669 }
  rect.ground { fill: #ffffff; stroke: none }
  path { stroke: #6b7280; fill: none; marker-end: url(#tip) }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto"><path d="M0 0 L8 4 L0 8 z" style="fill:#6b7280;stroke:none;marker-end:none"/>\
</marker></defs>
"""
# Description of each layer, by one of its packages.
NOTES = {
    "cli": "command line",
    "service": "the erasure desk, clients",
    "audit": "external audit",
    "ledger": "requests, certificates, purge",
    "bench": "benchmark of all methods",
    "select": "choose, monitor, check, attack",
    "evaluation": "evaluate a method",
    "persist": "save and load",
    "measures": "measures, data, plots",
    "naive": "methods that forget",
    "deep": "PyTorch networks, pipelines",
    "base": "the contract of forget",
    "parallel": "processes",
    "state": "digests, files, checkpoints",
    "data": "rows, ids, claims, receipts",
    "exceptions": "errors, randomness, verifier",
    "methods": "the registry",
}
# Path of a request: (module, description, whether it writes to the database or the disk).
STEPS = (
    ("service.routes.requests", "POST /api/v1/requests: role, idempotency key, ids", False),
    ("ledger.requests", "ids are encrypted; the request is written with its event", True),
    ("ledger.requests.states", "received → verified → queued", False),
    ("ledger.worker", "requests wait for a batch; one worker holds the lease", False),
    ("sandbox", "an untrusted model forgets in a sandboxed process", False),
    ("ledger.models", "the new version is published atomically (compare-and-set)", True),
    ("ledger.certificates", "a statement is checked, signed and logged", True),
    ("ledger.purge", "old versions, keys and ids are destroyed; stores are searched", True),
    ("audit, verifier.py", "a third party verifies the bundle with the public key", False),
)


def read_layers() -> list[list[str]]:
    """Return the layers from top to bottom, each a list of packages."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    lines = next(each["layers"] for each in contracts if "layers" in each)
    layers = [re.findall(r"\w+", line) for line in lines]
    listed = {name for layer in layers for name in layer}
    modules = sorted({method.module.removeprefix("letheon.") for method in METHODS} - listed)
    return [[*layer, *modules] if "naive" in layer else layer for layer in layers]


def _box(x: float, y: float, width: float, text: str, kind: str = "") -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{BOX}"/>'
        f'<text x="{x + width / 2:g}" y="{y + 20:g}" text-anchor="middle">{escape(text)}</text>\n'
    )


def _picture(height: float, body: str, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">\n'
        f"<title>{escape(title)}</title>\n{STYLE}"
        f'<rect class="ground" width="{WIDTH}" height="{height:g}"/>\n{body}</svg>\n'
    )


def draw_packages() -> str:
    """Return the diagram of the packages; each package imports only packages below it."""
    parts = []
    layers = read_layers()
    for place, layer in enumerate(layers):
        y = GAP + place * (BOX + GAP)
        width = (680 - GAP * (len(layer) - 1)) / len(layer)
        parts += [_box(GAP + i * (width + GAP), y, width, name) for i, name in enumerate(layer)]
        note = next((NOTES[name] for name in layer if name in NOTES), "")
        parts.append(f'<text class="note" x="704" y="{y + 20:g}">{escape(note)}</text>\n')
    title = "Packages of letheon; each imports only packages below it"
    return _picture(GAP + len(layers) * (BOX + GAP), "".join(parts), title)


def draw_request() -> str:
    """Return the diagram of the path of a request."""
    parts = []
    for place, (module, what, is_stored) in enumerate(STEPS):
        y = GAP + place * (BOX + 2 * GAP)
        parts.append(_box(GAP, y, 250, module, "store" if is_stored else ""))
        parts.append(f'<text class="note" x="290" y="{y + 20:g}">{escape(what)}</text>\n')
        if place:
            parts.append(f'<path d="M{GAP + 125} {y - 2 * GAP:g} L{GAP + 125} {y:g}"/>\n')
    title = "Path of an erasure request; green steps write to the database or the disk"
    return _picture(GAP + len(STEPS) * (BOX + 2 * GAP), "".join(parts), title)


def draw_idea() -> str:
    """Return the picture of the README: forgetting gives the bytes of a fresh fit."""
    width, step, upper, lower = 200, 250, 34, 134
    lanes = (
        (upper, ["rows of all people", "fitted model", "model that forgot", "certificate, audit"]),
        (lower, ["rows of the others", "", "fresh model", ""]),
    )
    parts = [
        _box(GAP + place * step, y, width, text, "store" if "model " in f"{text} " else "")
        for y, texts in lanes
        for place, text in enumerate(texts)
        if text
    ]
    arrows = (
        (upper, 0, 1, "fit"),
        (upper, 1, 2, "forget"),
        (upper, 2, 3, ""),
        (lower, 0, 2, "fit without the removed people"),
    )
    for y, start, end, word in arrows:
        left, right, middle = GAP + start * step + width, GAP + end * step, y + BOX / 2
        parts.append(f'<path d="M{left} {middle:g} L{right} {middle:g}"/>\n')
        parts.append(
            f'<text class="note" x="{(left + right) / 2:g}" y="{middle - 8:g}" '
            f'text-anchor="middle">{word}</text>\n'
        )
    x, below = GAP + 2 * step + width / 2, (upper + lower + BOX) / 2 + 5
    parts.append(f'<text x="{x:g}" y="{below:g}" text-anchor="middle">= the same bytes</text>\n')
    return _picture(lower + BOX + 34, "".join(parts), "Forgetting gives the bytes of a fresh fit")


PICTURES = {"idea.svg": draw_idea, "packages.svg": draw_packages, "request.svg": draw_request}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw(), encoding="utf-8")
