"""Write the tables of data sets in `docs/datasets.md` from `letheon.datasets`.

Run ``python docs/make_datasets.py`` after changing the catalogue; a test checks that the page
is up to date.
"""

import re
from pathlib import Path
from textwrap import wrap

from letheon.datasets import DatasetInfo, info, names

PAGE = Path(__file__).resolve().parent / "datasets.md"
UNVERIFIED = "unverified"
MARKS = re.compile(r"(<!-- (\w+): begin -->\n).*?(<!-- \2: end -->)", re.DOTALL)


def table() -> str:
    """Return the survey's table, with subject ids and licences."""
    titles = ("name", "columns", "rows", "classes", "positive", "subject id", "licence")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for about in map(info, names()):
        row = about.survey
        numbers = (row.dimensionality, row.size, row.classes, row.balance)
        doubt = f" ({UNVERIFIED})" if about.licence_source == UNVERIFIED else ""
        terms = f"{about.licence}{doubt}"
        cells = (f"[`{about.name}`](#{about.name})", *numbers, about.subject_id, terms)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def each() -> str:
    """Return one section per data set."""
    return "\n".join(map(_part, map(info, names())))


def _part(about: DatasetInfo) -> str:
    lines = [
        f"### {about.name}",
        "",
        *_wrap(f"{about.title}. From {about.provider}: <{about.page}>. {about.citation}."),
        "",
        *(f"- `{about.folder}/{file}`" for file in _files(about)),
        *_wrap(*(f'- `variant="{name}"`: {text}' for name, text in about.variants.items())),
        *_wrap(f"- licence: {about.licence}; source: {about.licence_source}"),
        *_wrap(f"- numbers of rows: {about.rows_source}"),
    ]
    if about.note:
        lines += ["", *_wrap(about.note)]
    return "\n".join(lines) + "\n"


def _wrap(*texts: str) -> list[str]:
    """Return the lines of paragraphs and list items, wrapped at 100 characters."""
    return [
        line
        for text in texts
        for line in wrap(
            text,
            100,
            subsequent_indent="  " * text.startswith("- "),
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _files(about: DatasetInfo) -> list[str]:
    """Return the files; only the first and the last of a long list."""
    shown = [str(file) for file in about.files]
    return shown if len(shown) <= 4 else [shown[0], "... and so on for every scene", shown[-1]]


def page(text: str) -> str:
    """Return the page with current tables between the marks."""
    made = {"table": table, "each": each}
    return MARKS.sub(lambda marks: marks[1] + made[marks[2]]() + marks[3], text)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
