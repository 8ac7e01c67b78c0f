"""Write the short table of the benchmark into README.md, from its committed results.

Run ``python docs/make_bench.py`` after ``python benchmarks/survey.py``; a test compares.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKS = re.compile(r"(<!-- bench: begin -->\n).*?(<!-- bench: end -->)", re.DOTALL)
SECTION = re.compile(r"^## In short\n\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def part() -> str:
    """Return the figure, the table and what has to be said beside them."""
    found = SECTION.search((RESULTS / "survey.md").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("benchmarks/results/survey.md has no section 'In short'")
    options = json.loads((RESULTS / "survey.json").read_text(encoding="utf-8"))["options"]
    return (
        "All seven methods on seven of the survey's data sets, measured in one way, with the "
        "published numbers beside (`letheon bench`):\n\n"
        "![speed-up of every method](benchmarks/results/survey.png)\n\n"
        f"{found[1].strip()}\n\n"
        f"At most {options['rows']:,} training rows ({options['net_rows']:,} for nets, on a GPU), "
        f"{options['seeds']} seeds; larger tables favour removal. Every data set, 1 person to 10 % "
        "of all, storage and attacks: [results](benchmarks/results/survey.md).\n"
    )


def readme(text: str) -> str:
    """Return README.md with the part between the marks made anew."""
    return MARKS.sub(lambda found: found[1] + part() + found[2], text)


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(readme(page.read_text(encoding="utf-8")), encoding="utf-8")
