"""`letheon bench`: all methods on the survey's data sets, beside the published numbers."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from letheon.cli._command import (
    flag,
    refuse,
    value,
    whole_number,
)

if TYPE_CHECKING:
    import rich.table

    from letheon.bench import Options, Table

__all__ = ["bench"]

_FAMILIES = {"linear": "linear", "forest": "forest", "deep": "net"}


def bench(
    quick: Annotated[
        bool, flag("--quick", "Small models on data that ship with scikit-learn.")
    ] = False,
    data: Annotated[
        str | None,
        value(
            "NAME,NAME",
            "Data sets, in LETHEON_DATA.",
            show_default="those of the survey's that are there",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        value(
            "NAME,NAME",
            "Methods: Naive, SISA, DaRE, Fisher, Influence, DeltaGrad, Descent-to-Delete, "
            "DeepObliviate.",
            show_default="all",
        ),
    ] = None,
    removed: Annotated[
        str | None,
        value("N,N%", "People who leave: numbers, or shares of all.", show_default="1,100,1%,10%"),
    ] = None,
    seeds: Annotated[
        int | None,
        value(
            "N",
            "Repetitions of every experiment.",
            parser=whole_number(1),
            show_default="5, quick: 2",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        value(
            "N",
            "Training rows at most; nets get two fifths of them.",
            parser=whole_number(200),
            show_default="5000",
        ),
    ] = None,
    attacks: Annotated[bool, flag("--attacks/--no-attacks", "Run attackers on models too.")] = True,
    only: Annotated[
        Literal["all", "linear", "forest", "deep"],
        typer.Option(help="One family of models."),
    ] = "all",
    device: Annotated[str, value("DEVICE", "Where nets are trained, such as cuda.")] = "cpu",
    jobs: Annotated[
        int | None,
        value(
            "N",
            "Experiments at once, each on one core.",
            parser=whole_number(1),
            show_default="2 where there are two cores",
        ),
    ] = None,
    out: Annotated[Path, value("DIR", "Where results are written.", file_okay=False)] = Path(
        "letheon-bench"
    ),
    resume: Annotated[bool, flag("--resume", "Go on where a run was stopped.")] = False,
) -> None:
    """Measure all methods as the survey's Tables 2 and 3 do, with its numbers beside.

    Every experiment is a file in DIR/cells; the report is DIR/report.html, .md and .json. Nets may
    be run elsewhere (--only deep --device cuda) and their cells put into the same folder; a run
    with --resume then counts them. The exit status is 1 if an experiment failed.
    """
    from letheon.bench import METHODS, Options

    chosen: dict[str, Any] = {"attacks": attacks, "device": device}
    chosen |= {} if seeds is None else {"seeds": seeds}
    chosen |= {} if rows is None else {"rows": rows, "net_rows": max(200, 2 * rows // 5)}
    chosen |= {} if only == "all" else {"families": (_FAMILIES[only],)}
    if methods is not None:
        chosen["methods"] = _parse_names("--methods", methods, METHODS)
    if removed is not None:
        chosen["removed"] = tuple(word.strip() for word in removed.split(","))
    if not quick or data is not None:
        chosen["datasets"] = _find_datasets(data)
    try:
        options = Options.quick(**chosen) if quick else Options(**chosen)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--removed") from None
    if not _run(options, out, resume=resume, jobs=jobs or min(2, os.cpu_count() or 1)):
        raise typer.Exit(1)


def _parse_names(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a list, in any letter case; reject unknown ones."""
    by_name = {name.lower(): name for name in known}
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in by_name:
            raise typer.BadParameter(f"{word!r}; there are {', '.join(known)}", param_hint=option)
    return tuple(dict.fromkeys(by_name[word] for word in words))


def _find_datasets(text: str | None) -> tuple[str, ...]:
    """Return the named data sets, or all of the survey's grid whose files are there."""
    from letheon.bench import DATASETS, QUICK_DATASETS
    from letheon.datasets import names, present

    if text is not None:
        chosen = _parse_names("--data", text, (*names(), *QUICK_DATASETS))
    else:
        chosen = tuple(name for name in DATASETS if present(name))
        if not chosen:
            refuse(
                f"no files of {', '.join(DATASETS)} in LETHEON_DATA; see letheon datasets, or "
                "use --quick, which needs none"
            )
    absent = [name for name in chosen if name not in QUICK_DATASETS and not present(name)]
    if absent:
        refuse(f"no files of {', '.join(absent)} in LETHEON_DATA; see letheon datasets")
    return chosen


def _run(options: "Options", out: Path, *, resume: bool, jobs: int) -> bool:
    """Run, write and show; return whether every experiment went well."""
    import time

    from letheon.bench import brief_table, run, write_results
    from letheon.terminal import PlainConsole, print_table

    begin = time.perf_counter()
    records = run(options, out, resume=resume, jobs=jobs, progress=_print_progress)
    seconds = time.perf_counter() - begin
    files = write_results(records, options, out / "report", seconds=seconds)
    console = PlainConsole()
    print_table(console, _rich_table(brief_table(records)))
    failed = sum(record["error"] is not None for record in records)
    console.print(f"{len(records):,} experiments in {seconds:,.0f} s, {failed:,} failed.")
    for file in files:
        console.print(str(file), soft_wrap=True)
    return failed == 0


def _print_progress(done: int, total: int, record: dict[str, Any]) -> None:
    """Print on the error stream what was done; the output stream has the table."""
    cell, error = record["cell"], record["error"]
    words = f"{cell['dataset']}, {cell['method']} ({cell['family']}), {cell['setting']}"
    said = f"{done}/{total} {words}, {cell['removed']}, {cell['kind']}: {record['seconds']:.1f} s"
    if error is not None:
        said += f"  FAILED {error['kind']}: {error['text']}"
    typer.echo(said, err=True)


# Longer published values are formulas and sentences: they stand in the report only.
_LONGEST_PUBLISHED = 16


def _rich_table(table: "Table") -> "rich.table.Table":
    """Return the table in short; brackets hold published numbers."""
    from letheon.evaluation.report import Cell

    rows = [
        [
            cell.value
            if isinstance(cell, Cell) and len(str(cell.published)) > _LONGEST_PUBLISHED
            else cell
            for cell in row
        ]
        for row in table.rows
    ]
    short = replace(table, title="", rows=rows, note="")
    return short.to_rich(no_wrap=table.names, pad_edge=False, collapse_padding=True)
