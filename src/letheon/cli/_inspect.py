"""`letheon inspect`: what a saved file says about itself."""

from pathlib import Path

from rich.table import Table

from letheon.cli._console import PlainConsole
from letheon.cli._words import refuse, size_text
from letheon.exceptions import StateError
from letheon.persist import FileInfo
from letheon.persist import inspect as read_info


def show_file(file: Path) -> None:
    """Print format, class, versions, size and every class the file names."""
    try:
        info = read_info(file)
    except (StateError, OSError) as error:
        refuse(str(error))
    PlainConsole(soft_wrap=True).print(_table(info))


def _table(info: FileInfo) -> Table:
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("format", info.format)
    table.add_row("class", info.class_name)
    table.add_row("size", f"{size_text(info.size)} ({info.size:,} bytes)")
    # "letheon" stands for the format, which has its own line.
    versions = [f"{name} {text}" for name, text in info.versions.items() if name != "letheon"]
    table.add_row("written with", ", ".join(versions))
    table.add_row("names", "\n".join(info.classes))
    return table
