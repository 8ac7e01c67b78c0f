"""A report as a table for a terminal."""

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from letheon.audit._result import AuditReport

__all__ = ["as_table"]

_STYLES = {"pass": "green", "fail": "bold red", "skipped": "yellow"}


def as_table(report: "AuditReport") -> Table:
    """Return one line per verdict; what a report says is text, never markup."""
    words = {"passed": "passed", "failed": "FAILED", "incomplete": "INCOMPLETE"}
    title = f"Audit of {report.ledger or 'a ledger'}: {words[report.verdict]}"
    table = Table(title=Text(title), caption=Text(report.scope) if report.scope else None)
    for column in ("level", "shows", "model", "verdict", "reason"):
        table.add_column(column, no_wrap=column in ("level", "verdict"))
    for result in report:
        table.add_row(
            result.level,
            result.name,
            Text(result.model or "all"),
            Text(result.verdict, style=_STYLES[result.verdict]),
            Text(result.reason),
        )
    return table
