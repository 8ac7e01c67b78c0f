"""Write the tables of methods: `docs/methods.md`, and the part between the marks in README.md.

Everything comes from what the classes declare (`MethodFacts`). Run ``python docs/make_methods.py``
after changing facts or a definition text; a test compares.
"""

import re
from pathlib import Path
from textwrap import fill
from typing import Any

import letheon
from letheon import MethodFacts

ROOT = Path(__file__).resolve().parents[1]
MARKS = re.compile(r"(<!-- methods: begin -->\n).*?(<!-- methods: end -->)", re.DOTALL)

HEAD = """\
# Methods

Made by `docs/make_methods.py` from what the classes declare about themselves; do not edit.
The columns are those of the survey's table of methods (Mercuri et al. 2022, Table 2), with the
requests and observers that the claim covers, and the parameters that trade speed or assurance.

- *strong* / *weak*: how the time of an update grows along a sequence of requests (survey,
  Definition 11).
- *needs*: what the method rests on (survey, Table 2). The classes bring losses that have it; it
  matters if you have your own loss. See [choosing a method](choosing.md).
- Every method answers one request of many people at less than many requests of one.
- *oblivious* / *adaptive* and *latest-only*: see [the contract](contract.md#oblivious-requests).

"""

CERTIFICATES = {
    "exact": "equal digests",
    "certified": "(epsilon, delta)",
    "empirical": "measured, not proved",
}


def methods() -> dict[str, tuple[MethodFacts, list[str]]]:
    """Return facts and class names of every public forgetting estimator, by method."""
    found: dict[str, tuple[MethodFacts, list[str]]] = {}
    for name in letheon.__all__:
        facts: Any = getattr(getattr(letheon, name), "facts", None)
        if isinstance(facts, MethodFacts):
            found.setdefault(facts.method, (facts, []))[1].append(name)
    return found


def summary() -> str:
    """Return the table for the README."""
    lines = ["| class | method | serves | kind | requests |", "|---|---|---|---|---|"]
    for facts, classes in methods().values():
        names = ", ".join(f"`{name}`" for name in classes)
        kind = _kind(facts)
        lines.append(
            f"| {names} | {facts.method} | {facts.applicability} | {kind} | {_requests(facts)} |"
        )
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the whole page: the table, then every definition text with its SHA-256."""
    titles = ["method", "applicability", "family", "tasks", "needs", "properties", "certificate"]
    titles += ["requests", "observer", "speed parameters", "assurance parameters"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines += [_row(facts) for facts, _ in methods().values()]
    return (
        HEAD + "\n".join(lines) + "\n" + "".join(_definition(*each) for each in methods().values())
    )


def _kind(facts: MethodFacts) -> str:
    of_head = ", as its head is" if "head" in facts.certifiability_parameters else ""
    return f"{facts.certificate}{of_head}"


def _requests(facts: MethodFacts) -> str:
    """Say what requests are covered; one variant of one method covers fewer."""
    if facts.method == "descent-to-delete":
        return 'adaptive; oblivious with `variant="distributed"`'
    return facts.requests


def _row(facts: MethodFacts) -> str:
    cells = [
        f"[{facts.method}](#{facts.method})",
        facts.applicability,
        ", ".join(facts.families),
        ", ".join(facts.tasks),
        _codes(facts.needs),
        f"{_kind(facts)}, {facts.strength}",
        CERTIFICATES[facts.certificate],
        _requests(facts),
        facts.releases,
        _codes(facts.efficiency_parameters),
        _codes(facts.certifiability_parameters),
    ]
    return f"| {' | '.join(cells)} |"


def _codes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _definition(facts: MethodFacts, classes: list[str]) -> str:
    names = ", ".join(f"`letheon.{name}`" for name in classes)
    # Headings of a text go below the heading of its method.
    text = re.sub(r"^#", "###", facts.definition, flags=re.MULTILINE).strip()
    text = re.sub(r"^[^|\n].{120,}$", _wrap, text, flags=re.MULTILINE)
    return (
        f"\n## {facts.method}\n\n{names}\n\nThe definition text, with long lines "
        f"wrapped. SHA-256 of the file:\n`{facts.definition_digest}`\n\n{text}\n"
    )


def _wrap(line: re.Match[str]) -> str:
    return fill(line[0], 100, break_long_words=False, break_on_hyphens=False)


def readme(text: str) -> str:
    """Return the README with the table of today between the marks."""
    return MARKS.sub(lambda marks: marks[1] + summary() + marks[2], text)


def main() -> None:
    """Write both files."""
    (ROOT / "docs" / "methods.md").write_text(page(), encoding="utf-8")
    front = ROOT / "README.md"
    front.write_text(readme(front.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
