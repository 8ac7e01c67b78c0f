"""`letheon datasets`: the survey's data sets, which of them are there, and how to get one."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from letheon.cli._words import refuse
from letheon.datasets import DatasetInfo, data_home, info, names, present
from letheon.terminal import PlainConsole, print_table

__all__ = ["show_dataset", "show_datasets"]


def show_datasets(folder: Path | None = None, console: Console | None = None) -> None:
    """Print a table of all data sets: present or not, rows and columns of the survey, terms."""
    console = console or PlainConsole(soft_wrap=True)
    table = Table(box=None)
    for title in ("name", "here", "rows", "columns", "classes", "subject id", "licence"):
        table.add_column(title, justify="right" if title in ("rows", "columns") else "left")
    for name in names():
        about = info(name)
        survey = about.survey
        here = "yes" if present(name, folder) else "-"
        numbers = (survey.size, survey.dimensionality, survey.classes)
        table.add_row(name, here, *numbers, about.subject_id, about.licence)
    print_table(console, table)
    console.print(f"Looked in {data_home(folder)}; rows and columns as the survey prints them.")
    console.print("What a data set needs: letheon datasets NAME")


def show_dataset(name: str, folder: Path | None = None, console: Console | None = None) -> None:
    """Print everything that is known about one data set."""
    console = console or PlainConsole(soft_wrap=True)
    if name not in names():
        refuse(f"no data set {name!r}; there are {', '.join(names())}")
    about = info(name)
    here = "yes" if present(name, folder) else "no"
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for what, text in _lines(about, data_home(folder)):
        table.add_row(what, text)
    table.add_row("here", here)
    console.print(table)


def _lines(about: DatasetInfo, home: Path) -> list[tuple[str, str]]:
    survey = about.survey
    lines = [
        ("name", f"{about.name}: {about.title}"),
        ("survey", f"{survey.size} x {survey.dimensionality}, {survey.classes} classes"),
        ("subject id", about.subject_id),
        ("files", "\n".join(f"{home / about.folder}/{file}" for file in about.files)),
        ("provider", f"{about.provider}, {about.page}"),
        ("licence", f"{about.licence} (source: {about.licence_source})"),
        ("row counts", f"source: {about.rows_source}"),
        ("cite", about.citation),
    ]
    if about.variants:
        lines.append(("variants", "\n".join(f"{k}: {v}" for k, v in about.variants.items())))
    if about.note:
        lines.append(("note", about.note))
    return lines
