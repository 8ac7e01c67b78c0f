"""`letheon plan`: expected cost of forgetting as a table."""

from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from letheon.cli._words import size_text
from letheon.sharded import Plan, compare_plans


def show_plans(
    rows: int, requests: list[int], shards: list[int], slices: list[int], **options: Any
) -> None:
    """Print one line for every combination, or say why a combination is impossible."""
    try:
        plans = compare_plans(rows, requests, n_shards=shards, n_slices=slices, **options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console = Console(highlight=False)
    console.print(_table(plans))
    console.print(_reading(plans[0]))


def _table(plans: list[Plan]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    columns = ["shards", "slices", "people", "rows/pass", "speed-up", "best case", "states"]
    if plans[0].storage_bytes is not None:
        columns.append("storage")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for each in plans:
        table.add_row(*_line(each))
    return table


def _line(plan: Plan) -> list[str]:
    line = [
        f"{plan.n_shards:,}",
        f"{plan.n_slices:,}",
        f"{plan.n_requests:,}",
        f"{plan.visits / plan.epochs:,.0f}",
        f"{plan.speed_up:.2f}x",
        f"{plan.best_case:.4g}x",
        f"{plan.states:,}",
    ]
    return line if plan.storage_bytes is None else [*line, size_text(plan.storage_bytes)]


def _reading(plan: Plan) -> str:
    how = "in one batch" if plan.batch else "one after the other"
    return (
        f"Of {plan.n_rows:,} rows, served {how}. Rows/pass: rows that are trained again, per pass "
        "of a plain training. It and the speed-up over naive retraining are means over where "
        "people happen to be. The best case needs all of them in the last slice of one shard. "
        "More shards also mean fewer rows for each, which costs accuracy."
    )
