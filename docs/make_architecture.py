"""Draw `docs/images/packages.svg` and `docs/images/request.svg`, the pictures of architecture.md.

The packages and their order come from the layers that import-linter enforces (pyproject.toml), so
the picture cannot differ from the code. Run ``python docs/make_architecture.py`` after a change;
a test compares.
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
# What a layer is about, by one of its packages.
NOTES = {
    "cli": "what people run",
    "service": "the erasure desk, clients",
    "audit": "checks by an outsider",
    "ledger": "requests, certificates, purge",
    "bench": "all methods side by side",
    "select": "choosing, watching, testing",
    "evaluation": "judging a method",
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
# What a request passes: (module, what happens there, whether it is stored there).
STEPS = (
    ("service.routes.requests", "POST /api/v1/requests: role, idempotency key, ids", False),
    ("ledger.requests", "ids are encrypted; the request is written with its event", True),
    ("ledger.requests.states", "received → verified → queued", False),
    ("ledger.worker", "requests wait for a batch; one worker holds the lease", False),
    ("sandbox", "a model from outside forgets in a process that can reach nothing", False),
    ("ledger.models", "the new version is published by compare-and-set", True),
    ("ledger.certificates", "a statement is checked, signed and logged", True),
    ("ledger.purge", "old versions, keys and ids are destroyed and searched for", True),
    ("audit, verifier.py", "an outsider checks the bundle with a public key", False),
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
    """Return the picture of the packages; each imports only what stands below it."""
    parts = []
    layers = read_layers()
    for place, layer in enumerate(layers):
        y = GAP + place * (BOX + GAP)
        width = (680 - GAP * (len(layer) - 1)) / len(layer)
        parts += [_box(GAP + i * (width + GAP), y, width, name) for i, name in enumerate(layer)]
        note = next((NOTES[name] for name in layer if name in NOTES), "")
        parts.append(f'<text class="note" x="704" y="{y + 20:g}">{escape(note)}</text>\n')
    title = "Packages of letheon: each imports only what stands below it"
    return _picture(GAP + len(layers) * (BOX + GAP), "".join(parts), title)


def draw_request() -> str:
    """Return the picture of the way of one request."""
    parts = []
    for place, (module, what, is_stored) in enumerate(STEPS):
        y = GAP + place * (BOX + 2 * GAP)
        parts.append(_box(GAP, y, 250, module, "store" if is_stored else ""))
        parts.append(f'<text class="note" x="290" y="{y + 20:g}">{escape(what)}</text>\n')
        if place:
            parts.append(f'<path d="M{GAP + 125} {y - 2 * GAP:g} L{GAP + 125} {y:g}"/>\n')
    title = "The way of an erasure request; green: written to the database or the disk"
    return _picture(GAP + len(STEPS) * (BOX + 2 * GAP), "".join(parts), title)


PICTURES = {"packages.svg": draw_packages, "request.svg": draw_request}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw(), encoding="utf-8")
