"""`letheon bench`: help, refusals, and a run."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner, Result

from letheon.cli import _tools
from letheon.cli._command import PlainCommand
from tests.bench.records import failed, quick_runner

APP = typer.Typer(add_completion=False)
APP.command(cls=PlainCommand)(_tools.bench)


def call(*words: str) -> Result:
    return CliRunner().invoke(APP, list(words), env={"COLUMNS": "100", "TERM": "dumb"})


def plain(output: str) -> str:
    return " ".join(re.sub("[│╭╮╰╯─]", " ", output).split())


def test_every_option_is_explained() -> None:
    output = plain(call("--help").output)
    parameters = get_command(APP).params
    assert [p.name for p in parameters if not p.help.endswith(".")] == []  # type: ignore[attr-defined]
    for option in ("--quick", "--data", "--methods", "--removed", "--seeds", "--out", "--resume"):
        assert option in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--quick", "--methods", "magic"), "expected one of: Naive, SISA, Fisher"),
        (("--quick", "--removed", "1,200%"), "expected a number of people"),
        (("--data", "no-such-set"), "'no-such-set'; expected one of: mnist"),
        (("--quick", "--seeds", "0"), "expected a whole number of at least 1"),
    ],
)
def test_refusals_are_plain(words: tuple[str, ...], said: str) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert said in plain(result.output)


def test_without_files_the_full_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path))
    result = call("--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "--quick" in result.output


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let cells be made up; return the list of what runs them."""
    import letheon.bench

    real = letheon.bench.run
    runners = [quick_runner]

    def run(*given: Any, **others: Any) -> Any:
        return real(*given, **{**others, "jobs": 1}, runner=runners[0])

    monkeypatch.setattr(letheon.bench, "run", run)
    return runners


def test_a_run_shows_published_numbers_and_writes_three_files(
    planted: list[Any], tmp_path: Path
) -> None:
    assert planted == [quick_runner]
    result = call("--quick", "--methods", "dare,Fisher", "--no-attacks", "--out", str(tmp_path))
    assert result.exit_code == 0
    assert "10x [366x]" in result.output
    assert "18 experiments" in result.output
    assert {file.name for file in tmp_path.glob("report.*")} == {
        "report.md",
        "report.json",
        "report.html",
    }


def test_a_failed_experiment_is_the_exit_status(planted: list[Any], tmp_path: Path) -> None:
    planted[0] = failed
    result = call("--quick", "--methods", "DaRE", "--no-attacks", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "8 failed" in result.output


def test_only_deep_runs_nets_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run(options: Any, *_: Any, **__: Any) -> bool:
        seen.append(options)
        return True

    monkeypatch.setattr(_tools, "_run_bench", run)
    call("--quick", "--only", "deep", "--device", "cuda", "--rows", "900")
    assert (seen[0].families, seen[0].device) == (("net",), "cuda")
    assert (seen[0].rows, seen[0].net_rows) == (900, 360)
