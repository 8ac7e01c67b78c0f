"""`letheon demo`, `plan`, `inspect`, `datasets` and `bench`: commands that need no ledger."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from letheon.cli import _command
from letheon.cli._command import exit_with_error, make_number_parser, parse_whole_numbers

if TYPE_CHECKING:
    from letheon.bench import BenchmarkOptions
    from letheon.datasets import DatasetInfo
    from letheon.sharded import Plan

# Batches that are shown without --requests.
_USUAL_REQUESTS = [1, 30]


@_command.document_options
def demo(seed: Annotated[int, typer.Option(parser=make_number_parser(0))] = 0) -> None:
    """Run the main use cases on data from scikit-learn; nothing is downloaded.

    The exit status is 1 if a check fails, for example if a model that forgot differs from a fresh
    fit on the remaining rows.

    Parameters
    ----------
    seed : N
        Seed of the models.
    """
    from letheon.demo import run_demo

    if not run_demo(seed):
        raise typer.Exit(1)


@_command.document_options
def plan(
    rows: Annotated[int, typer.Argument(parser=make_number_parser(2))],
    *,
    requests: str | None = None,
    shards: str = "1,5,20",
    slices: str = "1,10",
    epochs: Annotated[int | None, typer.Option(parser=make_number_parser(1))] = None,
    stage_data: Literal["cumulative", "new"] = "cumulative",
    one_by_one: bool = False,
    rows_per_person: Annotated[float, typer.Option(min=1)] = 1.0,
    state_bytes: Annotated[int | None, typer.Option(parser=make_number_parser(0))] = None,
) -> None:
    """Estimate the cost of forgetting with SISA, by number of shards, slices and people.

    Nothing is trained. The numbers are expected values over the shards and slices of the removed
    people. Example: letheon plan 100000 --shards 5,20 --slices 1,50 --requests 1,8,39

    Parameters
    ----------
    rows : ROWS
        Number of training rows.
    requests : N,N, by default 1,30 where possible
        Numbers of removed people to compare.
    shards : N,N
        Numbers of shards to compare.
    slices : N,N
        Numbers of slices per shard to compare.
    epochs : N, by default enough for the slices
        Epochs of a model without slices.
    stage_data : {"cumulative", "new"}
        Train a stage on all slices so far, or on its new slice only.
    one_by_one : bool
        Forget people one by one, not in one batch.
    rows_per_person : X
        Mean number of rows per person.
    state_bytes : N
        Size of a saved state in bytes; adds a column for storage.
    """
    from letheon.sharded import compare_plans
    from letheon.terminal import PlainConsole, print_table

    wanted = _USUAL_REQUESTS if requests is None else parse_whole_numbers("--requests", requests)
    served = wanted
    if requests is None:  # always one line, so that the table is explained
        served = [k for k in wanted if k < rows / rows_per_person] or wanted[:1]
    shape = {
        "n_shards": parse_whole_numbers("--shards", shards),
        "n_slices": parse_whole_numbers("--slices", slices),
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
    console = PlainConsole(markup=False)
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
        f"{plan.n_rows:,} rows; requests are processed {how}. Rows/pass: rows that are trained "
        "again, per epoch of plain training. Rows/pass and speed-up (over full retraining) are "
        "means over the possible shards and slices of the people. In the best case all people are "
        "in the last slice of one shard. With more shards, each shard has fewer rows, which lowers "
        "accuracy."
    )


def _plan_notes(plans: "list[Plan]", dropped: list[int]) -> list[str]:
    """Return notes on omitted numbers of people and on more shards than people."""
    notes = []
    people = plans[0].n_rows / plans[0].rows_per_person
    if dropped:
        several = ", ".join(map(str, dropped))
        notes.append(
            f"No line is shown for the removal of {several} people: of {people:,.0f} "
            f"people, none would remain."
        )
    most = max(plans, key=lambda plan: plan.n_shards)
    if most.n_shards > people:
        notes.append(
            f"{most.n_shards:,} shards for {people:,.0f} people: about {most.empty_shards:,.0f} "
            f"of them would be empty. The numbers are not meaningful with more shards than "
            f"people; use fewer shards."
        )
    return notes


@_command.document_options
def inspect(file: Annotated[Path, typer.Argument(exists=True, dir_okay=False)]) -> None:
    """Check the integrity of a saved model and show its content, without loading it.

    Parameters
    ----------
    file : FILE
        File that letheon.save wrote.
    """
    from letheon.exceptions import StateError
    from letheon.persist import inspect as read_info
    from letheon.terminal import size_text

    def list_versions(versions: dict[str, str]) -> str:
        # "letheon" is the version of the format, which has its own line.
        return ", ".join(f"{name} {text}" for name, text in versions.items() if name != "letheon")

    try:
        info = read_info(file)
    except (StateError, OSError) as error:
        exit_with_error(str(error))
    lines = [
        ("format", info.format),
        ("class", info.class_name),
        ("size", f"{size_text(info.size)} ({info.size:,} bytes)"),
        ("written with", list_versions(info.versions)),
    ]
    if trained := info.trained_with.items() - info.versions.items():
        lines.append(("trained with", list_versions(dict(sorted(trained)))))
    lines.append(("classes", "\n".join(info.classes)))
    if info.needs_trust:
        lines.append(("needs trust", info.needs_trust))
    _command.make_fact_list(lines, soft_wrap=True).print()


@_command.document_options
def datasets(name: str | None = None, *, folder: Path | None = None) -> None:
    """List the data sets of the survey, with availability, licence and how to get them.

    Parameters
    ----------
    name : NAME
        Show all details of this data set.
    folder : DIR, by default $LETHEON_DATA or ~/.cache/letheon
        Folder with the data files.
    """
    from letheon.datasets import data_home, info, names, present

    if name is None:
        _list_datasets(folder)
        return
    if name not in names():
        exit_with_error(f"unknown data set {name!r}; expected one of: {', '.join(names())}")
    availability = ("available", "yes" if present(name, folder) else "no")
    lines = [*_dataset_facts(info(name), data_home(folder)), availability]
    _command.make_fact_list(lines, soft_wrap=True).print()


def _list_datasets(folder: Path | None) -> None:
    """Print a table of all data sets: available or not, rows and columns in the survey, licence."""
    from letheon.datasets import data_home, info, names, present
    from letheon.terminal import PlainConsole, make_table, print_table

    rows = []
    for about in map(info, names()):
        survey, availability = about.survey, "yes" if present(about.name, folder) else "-"
        numbers = (survey.size, survey.dimensionality, survey.classes)
        rows.append((about.name, availability, *numbers, about.subject_id, about.licence))
    columns = ("name", "available", "rows", "columns", "classes", "subject id", "licence")
    console = PlainConsole(soft_wrap=True, markup=False)
    print_table(console, make_table(columns, rows, right=("rows", "columns"), box=None))
    console.print(f"Searched in {data_home(folder)}; rows and columns are those of the survey.")
    console.print("Details of a data set: letheon datasets NAME")


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


_FAMILIES = {"linear": "linear", "forest": "forest", "deep": "net"}


@_command.document_options
def bench(
    *,
    quick: bool = False,
    data: str | None = None,
    methods: str | None = None,
    removed: str | None = None,
    seeds: Annotated[int | None, typer.Option(parser=make_number_parser(1))] = None,
    rows: Annotated[int | None, typer.Option(parser=make_number_parser(200))] = None,
    attacks: bool = True,
    only: Literal["all", "linear", "forest", "deep"] = "all",
    device: str = "cpu",
    jobs: Annotated[int | None, typer.Option(parser=make_number_parser(1))] = None,
    out: Annotated[Path, typer.Option(file_okay=False)] = Path("letheon-bench"),
    resume: bool = False,
) -> None:
    """Benchmark all methods as in Tables 2 and 3 of the survey, and compare with its numbers.

    The result of every experiment is a file in DIR/cells. The report is written to DIR/report.html,
    .md and .json. To train networks on another machine, run with --only deep --device cuda there,
    copy the files in DIR/cells to this machine and run with --resume. The exit status is 1 if an
    experiment failed.

    Parameters
    ----------
    quick : bool
        Use small models on data from scikit-learn.
    data : NAME,NAME, by default the available data sets of the survey
        Data sets to use; `letheon datasets` lists them.
    methods : NAME,NAME, by default all
        Methods: Naive, SISA, DaRE, Boosting, Fisher, Influence, DeltaGrad, Descent-to-Delete,
        DeepObliviate.
    removed : N,N%, by default 1,100,1%,10%
        People to remove: numbers, or percentages of all people.
    seeds : N, by default 5; 2 with --quick
        Repetitions of every experiment.
    rows : N, by default 5000
        Maximum number of training rows; networks get two fifths of them.
    attacks : bool
        Also run attacks on the models.
    only : {"all", "linear", "forest", "deep"}
        Run one family of models only.
    device : DEVICE
        Device for training networks, such as cuda.
    jobs : N, by default 2; 1 on a single core
        Number of experiments to run in parallel, each on one core.
    out : DIR
        Folder for the results.
    resume : bool
        Continue a run that was stopped.
    """
    from letheon.bench import METHODS, BenchmarkOptions

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
        options = BenchmarkOptions.quick(**chosen) if quick else BenchmarkOptions(**chosen)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--removed") from None
    if not _run_bench(options, out, resume=resume, jobs=jobs or min(2, os.cpu_count() or 1)):
        raise typer.Exit(1)


def _parse_names(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a comma-separated list, ignoring case; reject unknown names."""
    by_name = {name.lower(): name for name in known}
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in by_name:
            raise typer.BadParameter(
                f"{word!r}; expected one of: {', '.join(known)}", param_hint=option
            )
    return tuple(dict.fromkeys(by_name[word] for word in words))


def _find_datasets(text: str | None) -> tuple[str, ...]:
    """Return the named data sets; by default, those of the survey whose files are available."""
    from letheon.bench import DATASETS, QUICK_DATASETS
    from letheon.datasets import data_home, names, present

    if text is not None:
        chosen = _parse_names("--data", text, (*names(), *QUICK_DATASETS))
    else:
        chosen = tuple(name for name in DATASETS if present(name))
        if not chosen:
            exit_with_error(
                f"the files of {', '.join(DATASETS)} are not in {data_home()}; see `letheon "
                "datasets`, or use --quick, which needs no files"
            )
    absent = [name for name in chosen if name not in QUICK_DATASETS and not present(name)]
    if absent:
        exit_with_error(
            f"the files of {', '.join(absent)} are not in {data_home()}; see `letheon datasets`"
        )
    return chosen


def _run_bench(options: "BenchmarkOptions", out: Path, *, resume: bool, jobs: int) -> bool:
    """Run the experiments and write the report; return whether every experiment succeeded."""
    from letheon.bench import brief_table, run, write_results
    from letheon.terminal import PlainConsole, print_table

    begin = time.perf_counter()
    records = run(options, out, resume=resume, jobs=jobs, progress=_print_progress)
    seconds = time.perf_counter() - begin
    files = write_results(records, options, out / "report", seconds=seconds)
    console = PlainConsole(markup=False)
    table = replace(brief_table(records), title="", note="")
    shown = table.to_rich(no_wrap=table.names, pad_edge=False, collapse_padding=True)
    print_table(console, shown)
    failed = sum(record["error"] is not None for record in records)
    console.print(f"{len(records):,} experiments in {seconds:,.0f} s, {failed:,} failed.")
    for file in files:
        console.print(str(file), soft_wrap=True)
    return failed == 0


def _print_progress(done: int, total: int, record: dict[str, Any]) -> None:
    """Print the progress to standard error, because standard output has the table."""
    cell, error = record["cell"], record["error"]
    words = f"{cell['dataset']}, {cell['method']} ({cell['family']}), {cell['setting']}"
    line = f"{done}/{total} {words}, {cell['removed']}, {cell['kind']}: {record['seconds']:.1f} s"
    if error is not None:
        line += f"  FAILED {error['kind']}: {error['text']}"
    typer.echo(line, err=True)
