"""A progress bar, or none."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Progress", "progress_bar"]


class Progress:
    """Takes note of what was done and shows nothing."""

    def tick(self) -> None:
        """Say that one more request is served."""

    def say(self, what: str) -> None:
        """Say what is done now."""


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Progress]:
    """Show a bar on standard error while the block runs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=total)

        class Shown(Progress):
            def tick(self) -> None:
                bars.advance(task)

            def say(self, what: str) -> None:
                bars.update(task, description=f"{title}: {what}")

        yield Shown()
