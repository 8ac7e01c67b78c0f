"""The `letheon` command: demo, planner, data sets, benchmark, saved files, ledger and desk.

Each command imports what it needs when it runs, so that ``letheon --help`` is fast.
"""

from typing import Annotated

import typer

from letheon.cli import _command, _ledgers, _requests, _serve, _tools
from letheon.cli._audits import audits
from letheon.cli._certificates import certs, receipts
from letheon.cli._command import ledger_command

__all__ = ["app"]

app = _command.make_group(
    "letheon", "Train models that can forget people.", cls=_command.ScriptedGroup
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from letheon import __version__

        typer.echo(f"letheon {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, _command.flag("--version", "Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train models that can forget people."""


for command in (_tools.demo, _tools.plan, _tools.inspect, _tools.datasets, _tools.bench):
    app.command(cls=_command.PlainCommand)(command)

_LEDGER, _DESK = "The erasure ledger", "The erasure desk"
ledger_command(app, opens=False, rich_help_panel=_LEDGER)(_ledgers.init)
app.command(cls=_command.LedgerCommand, rich_help_panel=_LEDGER)(_serve.worker)
ledger_command(app, opens=False, rich_help_panel=_LEDGER)(_ledgers.doctor)
for group in (
    _requests.models,
    _requests.requests,
    receipts,
    _serve.batches,
    certs,
    audits,
    _ledgers.ledgers,
    _ledgers.keys,
    _ledgers.stores,
):
    app.add_typer(group, rich_help_panel=_LEDGER)
app.command(cls=_command.LedgerCommand, rich_help_panel=_DESK)(_serve.serve)
app.add_typer(_serve.tokens, rich_help_panel=_DESK)
