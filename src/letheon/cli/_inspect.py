"""`letheon inspect`: what a saved file says about itself."""

from pathlib import Path

from rich.table import Table

from letheon.cli._words import refuse
from letheon.exceptions import StateError
from letheon.persist import FileInfo
from letheon.persist import inspect as read_info
from letheon.terminal import PlainConsole, size_text


def show_file(file: Path) -> None:
    """Print format, class, versions, size and every class the file names."""
    try:
        info = read_info(file)
    except (StateError, OSError) as error:
        refuse(str(error))
    PlainConsole(soft_wrap=True).print(_table(info))


def _listed(versions: dict[str, str]) -> str:
    # "letheon" stands for the format, which has its own line.
    return ", ".join(f"{name} {text}" for name, text in versions.items() if name != "letheon")


def _table(info: FileInfo) -> Table:
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("format", info.format)
    table.add_row("class", info.class_name)
    table.add_row("size", f"{size_text(info.size)} ({info.size:,} bytes)")
    table.add_row("written with", _listed(info.versions))
    trained = info.trained_with.items() - info.versions.items()
    if trained:
        table.add_row("trained with", _listed(dict(sorted(trained))))
    table.add_row("names", "\n".join(info.classes))
    if info.needs_trust:
        table.add_row("needs trust", info.needs_trust)
    return table
