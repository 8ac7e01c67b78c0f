"""The `letheon` command: a demo, a planner, data sets, a benchmark, saved files, the ledger.

Only what a command needs is imported, and only when it runs, so that ``letheon --help`` is quick.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from letheon.cli._bench import bench
from letheon.cli._help import PlainCommand
from letheon.cli._ledger_audit import audits
from letheon.cli._ledger_batches import batches, worker
from letheon.cli._ledger_certs import certs
from letheon.cli._ledger_common import LedgerCommand, ScriptedGroup
from letheon.cli._ledger_keys import keys, stores
from letheon.cli._ledger_ledger import ledgers
from letheon.cli._ledger_models import models
from letheon.cli._ledger_receipts import receipts
from letheon.cli._ledger_requests import requests as requests_of_people
from letheon.cli._ledger_setup import doctor, init
from letheon.cli._serve import serve
from letheon.cli._serve import tokens as tokens_of_desk
from letheon.cli._words import whole_number, whole_numbers

__all__ = ["app"]

app = typer.Typer(
    name="letheon",
    cls=ScriptedGroup,
    help="Models that can forget people.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables would show rows of people.
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from letheon import __version__

        typer.echo(f"letheon {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_show_version,
            is_eager=True,
            help="Show the version.",
        ),
    ] = False,
) -> None:
    """Models that can forget people."""


@app.command(cls=PlainCommand)
def demo(
    seed: Annotated[
        int, typer.Option(metavar="N", parser=whole_number(0), help="Seed of the models.")
    ] = 0,
) -> None:
    """Train, forget, check and save on data that ships with scikit-learn (no download).

    The exit status is 1 if a forgotten model differs from a fresh fit on the remaining rows.
    """
    from letheon.demo import play

    if not play(seed):
        raise typer.Exit(1)


@app.command(cls=PlainCommand)
def plan(
    rows: Annotated[
        int,
        typer.Argument(metavar="ROWS", parser=whole_number(2), help="Rows to be trained on."),
    ],
    requests: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="People who leave; several numbers with commas are compared.",
            show_default="1,30 where possible",
        ),
    ] = None,
    shards: Annotated[
        str, typer.Option(metavar="N,N", help="Numbers of shards to compare.")
    ] = "1,5,20",
    slices: Annotated[
        str, typer.Option(metavar="N,N", help="Numbers of slices per shard to compare.")
    ] = "1,10",
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=whole_number(1),
            help="Passes of a model without slices.",
            show_default="as slices need",
        ),
    ] = None,
    stage_data: Annotated[
        Literal["cumulative", "new"],
        typer.Option(help="A stage trains on all slices so far, or on its new one only."),
    ] = "cumulative",
    one_by_one: Annotated[
        bool,
        typer.Option("--one-by-one", metavar="", help="Serve requests singly, not in one batch."),
    ] = False,
    rows_per_person: Annotated[
        float, typer.Option(metavar="X", min=1, help="Mean rows of one person.")
    ] = 1.0,
    state_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=whole_number(0),
            help="Size of one saved state; adds a storage column.",
        ),
    ] = None,
) -> None:
    """Show what forgetting will cost for shards x slices x requests, before any training.

    Numbers are expectations for people who leave whatever shard or slice they are in. Example:
    letheon plan 100000 --shards 5,20 --slices 1,50 --requests 1,8,39
    """
    from letheon.cli._plan import show_plans

    show_plans(
        rows,
        None if requests is None else whole_numbers("--requests", requests),
        whole_numbers("--shards", shards),
        whole_numbers("--slices", slices),
        epochs=epochs,
        stage_data=stage_data,
        batch=not one_by_one,
        rows_per_person=rows_per_person,
        state_bytes=state_bytes,
    )


@app.command(cls=PlainCommand)
def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="A file that letheon.save wrote."
        ),
    ],
) -> None:
    """Say what is in a saved model: verified, and without building or running anything from it."""
    from letheon.cli._inspect import show_file

    show_file(file)


@app.command(cls=PlainCommand)
def datasets(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="One of them, with everything known about it."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the files are.",
            show_default="$LETHEON_DATA or ~/.cache/letheon",
        ),
    ] = None,
) -> None:
    """List the survey's data sets: which are here, their terms, and how to get the others."""
    from letheon.cli._datasets import show_dataset, show_datasets

    if name is None:
        show_datasets(folder)
    else:
        show_dataset(name, folder)


# A file of its own: it has more options than the others together.
app.command(cls=PlainCommand)(bench)

# The erasure ledger: one file per group.
_LEDGER = "The erasure ledger"
for command in (init, worker, doctor):
    app.command(cls=LedgerCommand, rich_help_panel=_LEDGER)(command)
_GROUPS = (models, requests_of_people, receipts, batches, certs, audits, ledgers, keys, stores)
for commands in _GROUPS:
    app.add_typer(commands, rich_help_panel=_LEDGER)

# The desk over it.
_DESK = "The erasure desk"
app.command(cls=LedgerCommand, rich_help_panel=_DESK)(serve)
app.add_typer(tokens_of_desk, rich_help_panel=_DESK)
