"""`letheon plan`: expected cost of forgetting as a table."""

from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from letheon.sharded import Plan, compare_plans
from letheon.terminal import PlainConsole, factor_text, print_table, size_text

# Batches that are shown when the caller names none.
USUAL_REQUESTS = (1, 30)


def show_plans(
    rows: int,
    requests: list[int] | None,
    shards: list[int],
    slices: list[int],
    *,
    rows_per_person: float,
    **options: Any,
) -> None:
    """Print one line for every combination, or say why a combination is impossible."""
    options["rows_per_person"] = rows_per_person
    asked = list(USUAL_REQUESTS) if requests is None else requests
    served = asked if requests is not None else _possible(asked, rows / rows_per_person)
    try:
        plans = compare_plans(rows, served, n_shards=shards, n_slices=slices, **options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console = PlainConsole()
    print_table(console, _table(plans))
    console.print(_reading(plans[0]))
    for note in _notes(plans, [k for k in asked if k not in served]):
        console.print(f"\nNote: {note}")


def _possible(requests: list[int], people: float) -> list[int]:
    """Return the batches that leave somebody; the first in any case, so that it is explained."""
    return [k for k in requests if k < people] or requests[:1]


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
        f"{plan.speed_up:,.2f}x",
        factor_text(plan.best_case),
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


def _notes(plans: list[Plan], dropped: list[int]) -> list[str]:
    """Say what the table does not show, or shows although it makes no sense."""
    notes = []
    people = plans[0].n_rows / plans[0].rows_per_person
    if dropped:
        several = ", ".join(map(str, dropped))
        notes.append(f"no lines for {several} people: nobody of {people:,.0f} would be left.")
    most = max(plans, key=lambda plan: plan.n_shards)
    if most.n_shards > people:
        notes.append(
            f"{most.n_shards:,} shards for {people:,.0f} people: about {most.empty_shards:,.0f} of "
            "them would stay empty. Numbers for more shards than people mean little; use fewer."
        )
    return notes
