"""All seven methods and naive retraining on the survey's data sets, with the published numbers.

Run ``LETHEON_DATA=... python benchmarks/survey.py`` (under 40 minutes on two cores) or, for a first
look at data that ship with scikit-learn, ``python benchmarks/survey.py --quick`` (under three
minutes). It is ``letheon bench`` with its results in ``benchmarks/results``. Cells are kept in
``build/survey``, so that ``--resume`` continues a stopped run; results of networks from another
machine (``letheon bench --only deep --device cuda``) can be copied there too.
"""

import sys
from pathlib import Path
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from letheon.bench import (
    DATASETS,
    BenchmarkOptions,
    brief_table,
    run,
    write_results,
)
from letheon.datasets import present

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def say(done: int, total: int, record: dict[str, Any]) -> None:
    cell, error = record["cell"], record["error"]
    words = (cell[name] for name in ("dataset", "method", "family", "setting", "removed", "kind"))
    outcome = f"{record['seconds']:.1f} s" if error is None else f"FAILED {error['text']}"
    print(f"{done}/{total} {', '.join(words)}: {outcome}", flush=True)


def main(
    quick: bool = typer.Option(False, help="Small sizes: indicative only."),
    resume: bool = typer.Option(False, help="Continue a stopped run."),
    jobs: int = typer.Option(2, help="Experiments at once, each on one core."),
    net_rows: int = typer.Option(
        BenchmarkOptions.net_rows, help="Maximum number of training rows of networks."
    ),
) -> None:
    """Run the benchmark; exit with 1 when an experiment failed."""
    name = "survey_quick" if quick else "survey"
    there = tuple(name for name in DATASETS if present(name))
    whole = BenchmarkOptions(datasets=there, net_rows=net_rows)
    options = BenchmarkOptions.quick() if quick or not there else whole
    if not there and not quick:
        print("no files in LETHEON_DATA: using data sets of scikit-learn")
        name = "survey_quick"
    records = run(options, ROOT / "build" / name, resume=resume, jobs=jobs, progress=say)
    # The time of all experiments, including earlier runs and other machines.
    seconds = sum(record["seconds"] for record in records)
    write_results(records, options, RESULTS / name, picture=True)
    print("", *brief_table(records).lines(), sep="\n")
    failed = sum(record["error"] is not None for record in records)
    print(f"\n{len(records)} experiments, {failed} failed; {seconds:.0f} s")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
