"""Write the tables of results in docs/forest.md, linear.md and boosting.md; draw the pictures.

The tables come from ``benchmarks/results``, the pictures from blocks of code on the pages. Run
``python docs/make_figures.py`` after a benchmark, or after a change of a model or of
`letheon.plot`; tests check that tables and pictures are up to date.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "forest.json"
CONVEX_RESULTS = ROOT / "benchmarks" / "results" / "convex.json"
BOOSTING_RESULTS = ROOT / "benchmarks" / "results" / "boosting.json"
MARKS = re.compile(r"(<!-- figures: begin -->\n).*?(<!-- figures: end -->)", re.DOTALL)
CONVEX_MARKS = re.compile(
    r"(<!-- convex figures: begin -->\n).*?(<!-- convex figures: end -->)", re.DOTALL
)
BOOSTING_MARKS = re.compile(
    r"(<!-- boosting figures: begin -->\n).*?(<!-- boosting figures: end -->)", re.DOTALL
)
# Pictures, and the pages with the code that draws them.
PICTURES = {"plan.png": "sisa.md", "tree.png": "forest.md", "skeleton.png": "boosting.md"}
DATA = {
    "adult": "Adult",
    "synthetic": "synthetic",
    "higgs": "HIGGS",
    "census": "census",
    "diabetes": "diabetes",
}
# Line of the page -> line and column of the table "Forgetting: ..." in the results.
TIMES = {
    "`fit`": ("fit", "p50 ms"),
    "**one person, forget + settle**, mean": ("forget, everything counted", "mean ms"),
    "one person, the call of a lazy `forget` alone, mean": ("forget, lazy", "mean ms"),
    "the same, median": ("forget, lazy", "p50 ms"),
    "first `predict` of one row after it, p99": ("first predict after it, 1 row(s)", "p99 ms"),
    "one person, eager, mean": ("forget, eager", "mean ms"),
    "worst of 1,000 people, forget + settle": ("forget + settle, worst of 1,000", "mean ms"),
    "10 % of the people at once, forget + settle": (
        "batch of 10% of the people + settle",
        "mean ms",
    ),
    "lazy `forget` with `subsample=0.1`, median": ("forget, lazy, subsample=.1", "p50 ms"),
}
# Tables of the convex benchmark: name of the data set, and its shape.
SINGLE = re.compile(r"One person leaves: (\w+): ([\d,]+ x [\d,]*\d)")
SOLVER = re.compile(r"Newton-Cholesky \(ours or scikit-learn's\), here (.+?) with (\S+) ms, over")


class Results:
    """Tables of a benchmark, by title."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.tables = {table["title"]: table for table in results["tables"]}

    def line(self, title: str, **values: Any) -> dict[str, Any]:
        """Return the first line of a table with these values."""
        rows: list[dict[str, Any]] = self.tables[title]["rows"]
        return next(row for row in rows if all(row[k] == v for k, v in values.items()))

    def forgetting(self, data: str, what: str) -> dict[str, Any]:
        """Return a line of the table of one data set."""
        return self.line(f"Forgetting: {data}", what=what)

    def note(self, data: str, pattern: str) -> str:
        """Return the match of a pattern in the note of that table."""
        match = re.search(pattern, self.tables[f"Forgetting: {data}"]["note"])
        assert match is not None, pattern
        return match.group(1)

    def unit(self, data: str) -> float:
        """Return F in seconds."""
        return float(self.note(data, r"F = ([\d.]+) s"))


def table(results: Results) -> str:
    """Return the table of the page."""
    lines = [["", *DATA.values()]]
    lines.append(["rows x columns", *(results.note(d, r": ([\d,]+ x \d+),") for d in DATA)])
    lines.append(["F", *(f"{results.unit(d):.3g} s" for d in DATA)])
    for title, (what, column) in TIMES.items():
        lines.append([title, *(_time(results, d, what, column) for d in DATA)])
    lines.append(["memory over the data", *(f"{_memory(results, d)} MB" for d in DATA)])
    lines.append(["AUC (scikit-learn's forest)", *(_auc(results, d) for d in DATA)])
    ranking = "Ranking compared with scikit-learn's forests"
    sampled = (results.line(ranking, data=d, model="letheon, subsample=.1")["AUC"] for d in DATA)
    lines.append(["AUC with `subsample=0.1`", *(f"{auc:.3f}" for auc in sampled)])
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _time(results: Results, data: str, what: str, column: str) -> str:
    seconds = results.forgetting(data, what)[column] / 1000
    share = seconds / results.unit(data)
    in_units = f"{share:.2f} F" if share > 0.05 else f"F/{_rounded(1 / share):,}"
    return f"{in_units} ({_duration(seconds)})"


def _rounded(number: float) -> int:
    """Return a number rounded to three digits."""
    return int(float(f"{number:.3g}"))


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _memory(results: Results, data: str) -> str:
    return results.note(data, r"Memory over the data: ([\d.]+) MB")


def _auc(results: Results, data: str) -> str:
    ranking = "Ranking compared with scikit-learn's forests"
    ours = results.line(ranking, data=data, model="letheon")["AUC"]
    theirs = results.line(ranking, data=data, model="RandomForest")["AUC"]
    return f"{ours:.3f} ({theirs:.3f})"


def convex_table(results: dict[str, Any]) -> str:
    """Return the table of single removals: one column per data set, one line per method."""
    sets = [table for table in results["tables"] if SINGLE.match(table["title"])]
    titles = [_part(SINGLE, table["title"]) for table in sets]
    lines = [["", *(title[1] for title in titles)], ["---"] * (len(sets) + 1)]
    lines.append(["rows x columns", *(title[2] for title in titles)])
    lines.append(["F", *(_solver(_part(SOLVER, table["note"])) for table in sets)])
    # Sorted, so that the settings of a method are next to each other.
    methods = sorted({row["method"] for table in sets for row in table["rows"]})
    lines += [[method, *(_single(table, method) for table in sets)] for method in methods]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _part(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.search(text)
    assert match is not None, f"{pattern.pattern} is not in {text!r}"
    return match


def _solver(named: re.Match[str]) -> str:
    return f"{named[1]}, {_duration(float(named[2]) / 1000)}"


def _single(table: dict[str, Any], method: str) -> str:
    """Return how much faster than F a request is, and its mean time."""
    row = next((row for row in table["rows"] if row["method"] == method), None)
    if row is None:
        return "-"
    ratio, took = row["x named"], _duration(row["cpu ms"] / 1000)
    return f"{ratio}, {took}" if "LOSS" in ratio else f"{ratio}x, {took}"


def page(text: str) -> str:
    """Return the page about forests with the results of the last benchmark."""
    figures = table(Results(json.loads(RESULTS.read_text(encoding="utf-8"))))
    return MARKS.sub(lambda marks: marks[1] + figures + marks[2], text)


def convex_page(text: str) -> str:
    """Return the page about linear models with the results of the last benchmark, if any."""
    if not CONVEX_RESULTS.exists():
        return text
    figures = convex_table(json.loads(CONVEX_RESULTS.read_text(encoding="utf-8")))
    return CONVEX_MARKS.sub(lambda marks: marks[1] + figures + marks[2], text)


def boosting_table(results: dict[str, Any]) -> str:
    """Return the table of both presets: one line per table of rows and preset."""
    head = ["table", "preset", "fit", "AUC - LightGBM's", "one person: mean", "median"]
    head += ["p99", "largest"]
    lines = [head, ["---"] * len(head)]
    for each in results["tables"]:
        rows = {row["model"]: row for row in each["rows"] if "AUC" in row and "model" in row}
        for preset in ("fast", "accurate") if "LightGBM, default" in rows else ():
            row, unit = rows[f"boosting, {preset}"], 1000 * _boosting_unit(each["note"])
            shape = re.sub(r", .*", "", each["note"].removeprefix(f"{each['title']}: "))
            loss = float(row["AUC"]) - float(rows["LightGBM, default"]["AUC"])
            lines.append([f"{each['title']}, {shape}", preset, f"{row['fit, F']} F"])
            lines[-1] += [f"{loss:+.4f}"]
            lines[-1] += [f"F/{_rounded(unit / row[key]):,}" for key in ("mean", "person p50, ms")]
            lines[-1] += [f"{row[key] / unit:.3f} F" for key in ("p99", "max")]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _boosting_unit(note: str) -> float:
    return float(_part(re.compile(r"F = ([\d.]+) s"), note)[1])


def boosting_page(text: str) -> str:
    """Return the page about boosting with the results of the last benchmark."""
    figures = boosting_table(json.loads(BOOSTING_RESULTS.read_text(encoding="utf-8")))
    return BOOSTING_MARKS.sub(lambda marks: marks[1] + figures + marks[2], text)


def code(picture: str) -> str:
    """Return the block of code that draws a picture."""
    text = (ROOT / "docs" / PICTURES[picture]).read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return next(block for block in blocks if f'"{picture}"' in block)


PAGES = (("forest.md", page), ("linear.md", convex_page), ("boosting.md", boosting_page))


def draw_pictures() -> None:
    """Draw all pictures in the docs folder."""
    import matplotlib as mpl

    mpl.use("Agg")
    os.chdir(ROOT / "docs")
    for picture in PICTURES:
        exec(code(picture), {})


if __name__ == "__main__":
    for NAME, MAKE in PAGES:
        PAGE = ROOT / "docs" / NAME
        PAGE.write_text(MAKE(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw_pictures()
