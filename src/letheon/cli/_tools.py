"""`letheon demo`, `plan`, `inspect` and `datasets`: commands that need no ledger."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from letheon.cli._command import (
    Facts,
    argument,
    flag,
    refuse,
    value,
    whole_number,
    whole_numbers,
)

if TYPE_CHECKING:
    from letheon.datasets import DatasetInfo
    from letheon.sharded import Plan

__all__ = ["datasets", "demo", "inspect", "plan"]

# Batches that are shown when the caller names none.
_USUAL_REQUESTS = [1, 30]


def demo(
    seed: Annotated[int, value("N", "Seed of the models.", parser=whole_number(0))] = 0,
) -> None:
    """Train, forget, check and save on data that ships with scikit-learn (no download).

    The exit status is 1 if a forgotten model differs from a fresh fit on the remaining rows.
    """
    from letheon.demo import play

    if not play(seed):
        raise typer.Exit(1)


def plan(
    rows: Annotated[int, argument("ROWS", "Rows to be trained on.", parser=whole_number(2))],
    requests: Annotated[
        str | None,
        value(
            "N,N",
            "People who leave; several numbers with commas are compared.",
            show_default="1,30 where possible",
        ),
    ] = None,
    shards: Annotated[str, value("N,N", "Numbers of shards to compare.")] = "1,5,20",
    slices: Annotated[str, value("N,N", "Numbers of slices per shard to compare.")] = "1,10",
    epochs: Annotated[
        int | None,
        value(
            "N",
            "Passes of a model without slices.",
            parser=whole_number(1),
            show_default="as slices need",
        ),
    ] = None,
    stage_data: Annotated[
        Literal["cumulative", "new"],
        typer.Option(help="A stage trains on all slices so far, or on its new one only."),
    ] = "cumulative",
    one_by_one: Annotated[
        bool, flag("--one-by-one", "Serve requests singly, not in one batch.")
    ] = False,
    rows_per_person: Annotated[float, value("X", "Mean rows of one person.", min=1)] = 1.0,
    state_bytes: Annotated[
        int | None,
        value("N", "Size of one saved state; adds a storage column.", parser=whole_number(0)),
    ] = None,
) -> None:
    """Show what forgetting will cost for shards x slices x requests, before any training.

    Numbers are expectations for people who leave whatever shard or slice they are in. Example:
    letheon plan 100000 --shards 5,20 --slices 1,50 --requests 1,8,39
    """
    from letheon.sharded import compare_plans
    from letheon.terminal import PlainConsole, print_table

    wanted = _USUAL_REQUESTS if requests is None else whole_numbers("--requests", requests)
    served = wanted
    if requests is None:  # the first in any case, so that it is explained
        served = [k for k in wanted if k < rows / rows_per_person] or wanted[:1]
    shape = {
        "n_shards": whole_numbers("--shards", shards),
        "n_slices": whole_numbers("--slices", slices),
    }
    try:
        plans = compare_plans(
            rows,
            served,
            **shape,
            epochs=epochs,
            stage_data=stage_data,
            batch=not one_by_one,
            rows_per_person=rows_per_person,
            state_bytes=state_bytes,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console = PlainConsole()
    print_table(console, _plan_table(plans))
    console.print(_explain_plan(plans[0]))
    for note in _plan_notes(plans, [k for k in wanted if k not in served]):
        console.print(f"\nNote: {note}")


def _plan_table(plans: "list[Plan]") -> Any:
    from letheon.terminal import factor_text, make_table, size_text

    columns = ["shards", "slices", "people", "rows/pass", "speed-up", "best case", "states"]
    rows = [
        [
            f"{plan.n_shards:,}",
            f"{plan.n_slices:,}",
            f"{plan.n_requests:,}",
            f"{plan.visits / plan.epochs:,.0f}",
            f"{plan.speed_up:,.2f}x",
            factor_text(plan.best_case),
            f"{plan.states:,}",
            *([] if plan.storage_bytes is None else [size_text(plan.storage_bytes)]),
        ]
        for plan in plans
    ]
    columns += [] if plans[0].storage_bytes is None else ["storage"]
    look = {"pad_edge": False, "collapse_padding": True}
    return make_table(columns, rows, right=columns, no_wrap=columns, **look)


def _explain_plan(plan: "Plan") -> str:
    how = "in one batch" if plan.batch else "one after the other"
    return (
        f"Of {plan.n_rows:,} rows, served {how}. Rows/pass: rows that are trained again, per pass "
        "of a plain training. It and the speed-up over naive retraining are means over where "
        "people happen to be. The best case needs all of them in the last slice of one shard. "
        "More shards also mean fewer rows for each, which costs accuracy."
    )


def _plan_notes(plans: "list[Plan]", dropped: list[int]) -> list[str]:
    """Return what the table does not show, or shows although it makes no sense."""
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


def inspect(
    file: Annotated[
        Path, argument("FILE", "A file that letheon.save wrote.", exists=True, dir_okay=False)
    ],
) -> None:
    """Say what is in a saved model: verified, and without building or running anything from it."""
    from letheon.exceptions import StateError
    from letheon.persist import inspect as read_info
    from letheon.terminal import size_text

    def list_versions(versions: dict[str, str]) -> str:
        # "letheon" stands for the format, which has its own line.
        return ", ".join(f"{name} {text}" for name, text in versions.items() if name != "letheon")

    try:
        info = read_info(file)
    except (StateError, OSError) as error:
        refuse(str(error))
    lines = [
        ("format", info.format),
        ("class", info.class_name),
        ("size", f"{size_text(info.size)} ({info.size:,} bytes)"),
        ("written with", list_versions(info.versions)),
    ]
    if trained := info.trained_with.items() - info.versions.items():
        lines.append(("trained with", list_versions(dict(sorted(trained)))))
    lines.append(("names", "\n".join(info.classes)))
    if info.needs_trust:
        lines.append(("needs trust", info.needs_trust))
    Facts(lines, soft_wrap=True).print()


def datasets(
    name: Annotated[
        str | None, argument("[NAME]", "One of them, with everything known about it.")
    ] = None,
    folder: Annotated[
        Path | None,
        value("DIR", "Where the files are.", show_default="$LETHEON_DATA or ~/.cache/letheon"),
    ] = None,
) -> None:
    """List the survey's data sets: which are here, their terms, and how to get the others."""
    from letheon.datasets import data_home, info, names, present

    if name is None:
        _list_datasets(folder)
        return
    if name not in names():
        refuse(f"no data set {name!r}; there are {', '.join(names())}")
    here = ("here", "yes" if present(name, folder) else "no")
    Facts([*_dataset_facts(info(name), data_home(folder)), here], soft_wrap=True).print()


def _list_datasets(folder: Path | None) -> None:
    """Print a table of all data sets: present or not, rows and columns of the survey, terms."""
    from letheon.datasets import data_home, info, names, present
    from letheon.terminal import PlainConsole, make_table, print_table

    rows = []
    for about in map(info, names()):
        survey, here = about.survey, "yes" if present(about.name, folder) else "-"
        numbers = (survey.size, survey.dimensionality, survey.classes)
        rows.append((about.name, here, *numbers, about.subject_id, about.licence))
    columns = ("name", "here", "rows", "columns", "classes", "subject id", "licence")
    console = PlainConsole(soft_wrap=True)
    print_table(console, make_table(columns, rows, right=("rows", "columns"), box=None))
    console.print(f"Looked in {data_home(folder)}; rows and columns as the survey prints them.")
    console.print("What a data set needs: letheon datasets NAME")


def _dataset_facts(about: "DatasetInfo", home: Path) -> list[tuple[str, str]]:
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
