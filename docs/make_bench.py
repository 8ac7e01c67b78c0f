"""Write the short table of the benchmark into docs/benchmarks.md, from its committed results.

Run ``python docs/make_bench.py`` after ``python benchmarks/survey.py``; a test checks that the
page is up to date.
"""

import json
import re
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKS = re.compile(r"(<!-- bench: begin -->\n).*?(<!-- bench: end -->)", re.DOTALL)
SECTION = re.compile(r"^## In short\n\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def make_section() -> str:
    """Return the figure, the table and the conditions of the measurement."""
    section = SECTION.search((RESULTS / "survey.md").read_text(encoding="utf-8"))
    if section is None:
        raise SystemExit("benchmarks/results/survey.md has no section 'In short'")
    options = json.loads((RESULTS / "survey.json").read_text(encoding="utf-8"))["options"]
    return (
        "All seven methods on seven of the survey's data sets, measured in the same way, next to\n"
        "the published numbers (`letheon bench`):\n\n"
        "![speed-up of every method](../benchmarks/results/survey.png)\n\n"
        f"{_wrap_prose(section[1].strip())}\n\n"
        f"At most {options['rows']:,} training rows ({options['net_rows']:,} for networks, on a "
        f"GPU), {options['seeds']} seeds. The speed-up\ngrows with the number of rows. "
        "[All results](../benchmarks/results/survey.md): every data set,\n"
        "requests from 1 person to 10 % of all people, storage and attacks.\n"
    )


def _wrap_prose(text: str) -> str:
    """Wrap paragraphs at 100 characters; tables are not changed."""
    return re.sub(r"^[^|\n].{100,}$", lambda line: fill(line[0], 100), text, flags=re.MULTILINE)


def make_page(text: str) -> str:
    """Return the page with a new section between the marks."""
    return MARKS.sub(lambda marks: marks[1] + make_section() + marks[2], text)


if __name__ == "__main__":
    page = ROOT / "docs" / "benchmarks.md"
    page.write_text(make_page(page.read_text(encoding="utf-8")), encoding="utf-8")
