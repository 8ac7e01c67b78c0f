"""Runs: real small cells, errors that stay in their cell, and going on after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from letheon.bench import (
    BenchmarkCell,
    BenchmarkOptions,
    list_cells,
    read_cells,
    run,
    write_results,
)
from letheon.bench._run import prepare_data, run_cell
from tests.bench.records import failed, quick_runner

TINY = BenchmarkOptions.quick(
    datasets=("breast-cancer",),
    methods=("DaRE", "Influence"),
    families=("linear", "forest"),
    removed=("1", "10%"),
    seeds=1,
    rows=200,
    attacks=False,
)
KILLED = """
import sys, time
from tests.bench.test_run import TINY, slow_runner
from letheon.bench import run
run(TINY, sys.argv[1], runner=slow_runner)
"""


def slow_runner(cell: BenchmarkCell, options: BenchmarkOptions) -> dict[str, Any]:
    """Take a moment for every cell, so that a kill finds some of them done."""
    time.sleep(0.3)
    return quick_runner(cell, options)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("bench")
    return folder, run(TINY, folder)


def test_real_cells_have_both_baselines(tiny: tuple[Path, list[dict[str, Any]]]) -> None:
    _, records = tiny
    assert [record["error"] for record in records] == [None] * len(records)
    for record in records:
        assert set(record["evaluation"]["measures"]) == {"same algorithm", "ordinary model"}


def test_an_exact_method_is_exact_in_its_cells(tiny: tuple[Path, list[dict[str, Any]]]) -> None:
    _, records = tiny
    dare = [r["evaluation"] for r in records if r["cell"]["method"] == "DaRE"]
    assert len(dare) == 4
    assert all(evaluation["equal_digests"] for evaluation in dare)


def test_real_cells_make_a_report(tiny: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    _, records = tiny
    markdown, plain, page = write_results(records, TINY, tmp_path / "report", seconds=1.0)
    assert "[366x]" in markdown.read_text()
    content = json.loads(plain.read_text())
    assert len(content["cells"]) == len(records)
    assert content["cells"][0]["measures"].keys() == {"same algorithm", "ordinary model"}
    html = page.read_text()
    assert "published: 366x" in html
    assert "<svg" not in html.split("</head>")[0]
    assert "http://" not in html.replace("http://www.w3.org", "")


def test_one_attack_cell_for_real() -> None:
    options = BenchmarkOptions.quick(datasets=("breast-cancer",), attack_rows=200)
    cell = BenchmarkCell(
        dataset="breast-cancer",
        method="DaRE",
        family="forest",
        setting="least d_rmax",
        removed="10%",
        kind="attack",
    )
    record = run_cell(cell, options)
    assert record["error"] is None
    assert {outcome["attack"] for outcome in record["attacks"]} == {
        "rmia",
        "backdoor",
        "before-after",
    }
    assert all(
        outcome["floor"].keys() == outcome["measures"].keys() for outcome in record["attacks"]
    )


def test_resume_keeps_what_is_there(tmp_path: Path) -> None:
    calls: list[BenchmarkCell] = []

    def counting(cell: BenchmarkCell, options: BenchmarkOptions) -> dict[str, Any]:
        calls.append(cell)
        return quick_runner(cell, options)

    run(TINY, tmp_path, runner=counting)
    n_cells = len(calls)
    run(TINY, tmp_path, resume=True, runner=counting)
    assert len(calls) == n_cells
    run(TINY, tmp_path, runner=counting)
    assert len(calls) == 2 * n_cells


def test_resume_runs_cells_of_other_options_again(tmp_path: Path) -> None:
    run(TINY, tmp_path, runner=quick_runner)
    calls: list[BenchmarkCell] = []

    def counting(cell: BenchmarkCell, options: BenchmarkOptions) -> dict[str, Any]:
        calls.append(cell)
        return quick_runner(cell, options)

    other = BenchmarkOptions(**{**vars(TINY), "seeds": 2})
    run(other, tmp_path, resume=True, runner=counting)
    assert calls == list_cells(other)


def test_resume_takes_cells_from_another_device(tmp_path: Path) -> None:
    elsewhere = BenchmarkOptions(**{**vars(TINY), "device": "cuda"})
    run(elsewhere, tmp_path, runner=quick_runner)

    def never(cell: BenchmarkCell, options: BenchmarkOptions) -> dict[str, Any]:
        raise AssertionError("a cell was run again")

    assert len(run(TINY, tmp_path, resume=True, runner=never)) == len(list_cells(TINY))


def test_an_error_in_one_cell_does_not_stop_the_rest(tmp_path: Path) -> None:
    def sometimes(cell: BenchmarkCell, options: BenchmarkOptions) -> dict[str, Any]:
        return failed(cell, options) if cell.method == "DaRE" else quick_runner(cell, options)

    records = run(TINY, tmp_path, runner=sometimes)
    assert len(records) == len(list_cells(TINY))
    assert {r["cell"]["method"] for r in records if r["error"]} == {"DaRE"}
    report = write_results(records, TINY, tmp_path / "report", figures=False)[0].read_text()
    assert "a planted failure" in report


def test_a_failed_cell_is_run_again_on_resume(tmp_path: Path) -> None:
    run(TINY, tmp_path, runner=failed)
    records = run(TINY, tmp_path, resume=True, runner=quick_runner)
    assert all(record["error"] is None for record in records)


def test_a_real_error_is_recorded_with_its_text() -> None:
    cell = BenchmarkCell(
        dataset="no-such-set",
        method="DaRE",
        family="forest",
        setting="least d_rmax",
        removed="1",
    )
    record = run_cell(cell, TINY)
    assert record["error"]["kind"] == "ValueError"
    assert "no-such-set" in record["error"]["text"]
    assert record["evaluation"] is None


def test_half_a_file_is_no_result(tmp_path: Path) -> None:
    run(TINY, tmp_path, runner=quick_runner)
    victim = tmp_path / "cells" / f"{list_cells(TINY)[0].name}.json"
    victim.write_text(victim.read_text()[:100])
    assert len(read_cells(tmp_path)) == len(list_cells(TINY)) - 1
    run(TINY, tmp_path, resume=True, runner=quick_runner)
    assert len(read_cells(tmp_path)) == len(list_cells(TINY))


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path.cwd())
    home = tmp_path / "cells"
    deadline = time.monotonic() + 60
    while len(list(home.glob("*.json"))) < 2 and time.monotonic() < deadline:
        assert child.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    before = {file.name: file.stat().st_mtime_ns for file in home.glob("*.json")}
    assert 2 <= len(before) < len(list_cells(TINY))
    run(TINY, tmp_path, resume=True, runner=quick_runner)
    after = {file.name: file.stat().st_mtime_ns for file in home.glob("*.json")}
    assert len(after) == len(list_cells(TINY))
    assert {name: after[name] for name in before} == before


def test_cells_in_several_processes_are_the_same_cells(tmp_path: Path) -> None:
    few = BenchmarkOptions(**{**vars(TINY), "methods": ("DaRE",), "removed": ("1",)})
    records = run(few, tmp_path, jobs=2, runner=quick_runner)
    assert records == run(few, tmp_path, runner=quick_runner)
    assert len(records) == 2


@pytest.mark.parametrize("family", ["linear", "net"])
def test_constants_come_from_rows_that_no_model_trains_on(family: Any) -> None:
    """Another half of the training rows gives the same numbers for the rows in both."""
    more = prepare_data("breast-cancer", family, 300, 100)
    fewer = prepare_data("breast-cancer", family, 150, 100)
    both = [i for i, person in enumerate(more.ids) if person in set(fewer.ids.tolist())]
    assert len(both) == len(fewer.ids)
    assert (more.X[both] == fewer.X).all()


def test_linear_rows_have_norm_one() -> None:
    data = prepare_data("digits", "linear", 500, 100)
    norms = (data.X**2).sum(axis=1)
    assert norms.max() <= 1
    assert norms.min() == pytest.approx(1)
