"""`letheon plan`, `letheon inspect`, `--version`, `--help`: words, numbers, refusals."""

import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text
from sklearn.tree import DecisionTreeClassifier
from typer import BadParameter
from typer.main import get_command
from typer.testing import CliRunner, Result

import letheon
from letheon.cli import app
from letheon.cli._command import parse_whole_numbers
from letheon.terminal import PlainConsole, factor_text, print_table, size_text, time_text
from tests.state.forge import file_of

SCRIPT = [sys.executable, "-c", "from letheon.cli import app; app()"]


def call(*words: str, columns: int = 80) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": str(columns), "TERM": "dumb"})


def plain(output: str) -> str:
    """Return what was said without frames and line breaks."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", output).split())


def numbers(output: str) -> list[list[str]]:
    """Return the lines of a printed table that hold numbers only."""
    lines = [line.split() for line in output.splitlines()]
    return [line for line in lines if len(line) >= 7 and all(w[0].isdigit() for w in line)]


def test_version() -> None:
    assert call("--version").output == f"letheon {letheon.__version__}\n"


def test_real_process_on_a_pipe_prints_no_escape_codes() -> None:
    run = subprocess.run([*SCRIPT, "plan", "1000"], capture_output=True, text=True, check=True)
    assert "\x1b" not in run.stdout
    assert run.stderr == ""
    assert max(map(len, run.stdout.splitlines())) <= 80


def test_help_imports_nothing_heavy() -> None:
    code = "import letheon.cli, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "sklearn", "letheon.base"} & set(run.stdout.split())


@pytest.mark.parametrize("command", ["demo", "plan", "inspect"])
def test_every_option_is_explained(command: str) -> None:
    output = plain(call(command, "--help").output)
    parameters = get_command(app).commands[command].params  # type: ignore[attr-defined]
    assert [p.name for p in parameters if not p.help.endswith(".")] == []
    assert " ." not in output, "a text in brackets was taken for markup"


@pytest.mark.parametrize(
    ("words", "usage"),
    [(["plan"], "plan [OPTIONS] ROWS"), (["inspect"], "inspect [OPTIONS] FILE"), ([], "[OPTIONS]")],
)
def test_help_uses_the_usual_notation(words: list[str], usage: str) -> None:
    output = plain(call(*words, "--help").output)
    assert usage in output
    assert "{" not in output
    assert "<bool>" not in output


def test_plan_prints_the_formula() -> None:
    (line,) = numbers(
        call("plan", "100000", "--shards", "20", "--slices", "50", "--requests", "1").output
    )
    mean, best = 20 * 3 * 50 / (2 * 50 + 1), (50 + 1) * 20 / 2
    assert line[:3] == ["20", "50", "1"]
    assert line[4:6] == [f"{mean:.2f}x", f"{best:.0f}x"]


def test_plan_of_a_batch_is_that_of_the_paper() -> None:
    output = call(
        "plan", "250000", "--shards", "20", "--slices", "50", "--requests", "8,18,39"
    ).output
    assert [line[4] for line in numbers(output)] == ["4.23x", "2.24x", "1.42x"]


def test_plan_one_by_one_costs_more_than_a_batch() -> None:
    words = ("plan", "1000", "--shards", "5", "--slices", "1", "--requests", "10")
    (together,), (singly,) = (
        numbers(call(*words).output),
        numbers(call(*words, "--one-by-one").output),
    )
    assert float(singly[3].replace(",", "")) > float(together[3].replace(",", ""))


def test_plan_of_few_rows_drops_impossible_defaults() -> None:
    result = call("plan", "25")
    assert result.exit_code == 0
    assert {line[2] for line in numbers(result.output)} == {"1"}
    assert "the removal of 30 people: of 25 people, none would remain" in plain(result.output)
    assert "Note" not in call("plan", "31", "--shards", "5").output


@pytest.mark.parametrize(("shards", "noted"), [("20", False), ("21", True)])
def test_more_shards_than_people_are_noted(shards: str, noted: bool) -> None:
    words = ("plan", "40", "--rows-per-person", "2", "--requests", "1", "--shards", shards)
    assert ("21 shards for 20 people: about" in plain(call(*words).output)) == noted


def test_empty_shards_of_the_note_are_binomial() -> None:
    output = plain(call("plan", "50", "--requests", "1", "--shards", "100").output)
    assert f"about {100 * 0.99**50:.0f} of them would be empty" in output


@pytest.mark.parametrize("columns", [20, 40, 62])
def test_plan_never_truncates_a_number(columns: int) -> None:
    words = ("plan", "10000000", "--shards", "5000", "--slices", "10")
    lines = numbers(call(*words, columns=columns).output)
    assert lines == numbers(call(*words).output)
    assert lines[0][4:6] == ["7,142.86x", "27,500x"]


def test_a_table_leaves_the_console_as_it_was() -> None:
    console = PlainConsole(file=io.StringIO(), width=10)
    print_table(console, Table("a number of many words", "another"))
    assert console.width == 10


def test_a_terminal_gets_colours(capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole(force_terminal=True, color_system="standard").print("[red]no[/red]")
    assert "\x1b[31mno" in capsys.readouterr().out


def test_names_in_a_file_do_not_steer_the_terminal(tmp_path: Path) -> None:
    name = "\x1b[2J\x1b]0;title\x07\u202enwad"
    about = {"dict": {"environment_": {"dict": {"numpy": name}}, "f": {"name": name}}}
    path = file_of(tmp_path / "hostile", {"object": [f"sklearn.{name}", about]}, kind="model")
    output = call("inspect", str(path)).output
    assert "sklearn.\ufffd[2J" in output
    assert not any(sign in output for sign in "\x1b\x07\u202e")


def test_a_terminal_shows_colours_and_no_control_of_others() -> None:
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=True, color_system="standard")
    console.print(Text("a\x1b[2Jb\rc", "red"))
    assert file.getvalue() == "\x1b[31ma\ufffd[2Jbc\x1b[0m\n"


def test_plan_with_storage_fits_80_columns() -> None:
    output = call("plan", "10000000", "--state-bytes", "4000000").output
    assert "storage" in output
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "many"], "'ROWS': 'many'; expected a whole number of at least 2"),
        (["plan", "1"], "'ROWS': '1'; expected a whole number of at least 2"),
        (["plan", "1000", "--epochs", "1.5"], "'1.5'; expected a whole number of at least 1"),
        (["plan", "25", "--requests", "30"], "so that some rows remain"),
        (["demo", "--seed", "x"], "'x'; expected a whole number of at least 0"),
        (["plan", "1000", "--shards", "5,x"], "expected whole numbers"),
        (["plan", "1000", "--slices", "0"], "expected whole numbers"),
        (["plan", "100", "--requests", "100"], "so that some rows remain"),
        (["plan", "1000", "--slices", "50", "--epochs", "3"], "use at least 26 epochs"),
        (["plan", "1000", "--stage-data", "old"], "cumulative"),
        (["inspect", "no-such-file"], "does not exist"),
        (["remember"], "No such command"),
    ],
)
def test_bad_words_are_explained_with_status_2(words: list[str], said: str) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert said in plain(result.output)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    X = np.arange(20.0).reshape(10, 2)
    model = letheon.NaiveUnlearner(DecisionTreeClassifier(), random_state=0)
    letheon.save(model.fit(X, np.arange(10) % 2), tmp_path / "tree.letheon")
    return tmp_path / "tree.letheon"


def test_inspect_says_what_the_file_holds(saved: Path) -> None:
    output = call("inspect", str(saved)).output
    for words in ("letheon-v1", "letheon.naive.NaiveUnlearner", f"{saved.stat().st_size:,} bytes"):
        assert words in output
    assert "sklearn.tree._classes.DecisionTreeClassifier" in output
    assert "trained with" not in output  # as it was written


def test_inspect_says_where_a_net_was_trained(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = letheon.SISANetClassifier(n_shards=1, epochs=1, device="cpu", random_state=0)
    letheon.save(net.fit(np.eye(8), np.arange(8) % 2), tmp_path / "net.letheon")
    output = call("inspect", str(tmp_path / "net.letheon")).output
    trained = next(line for line in output.splitlines() if "trained with" in line)
    assert re.search(rf"device cpu .*torch {re.escape(torch.__version__)}", trained)
    assert "numpy" not in trained


def test_inspect_refuses_an_altered_file(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[-1] ^= 1
    saved.write_bytes(data)
    result = call("inspect", str(saved))
    assert result.exit_code == 1
    assert "truncated or altered" in result.stderr
    assert "Traceback" not in result.output


def test_inspect_refuses_a_pickle(tmp_path: Path) -> None:
    file = tmp_path / "model.pkl"
    file.write_bytes(b"\x80\x04K\x01.")
    result = call("inspect", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "never opens" in result.stderr


@given(st.lists(st.integers(1, 10**9), min_size=1))
def test_lists_of_numbers_are_read_back(values: list[int]) -> None:
    assert parse_whole_numbers("--x", ", ".join(map(str, values))) == values


@given(st.text())
def test_other_texts_are_refused_and_never_crash(text: str) -> None:
    try:
        values = parse_whole_numbers("--x", text)
    except BadParameter:
        return
    assert min(values) > 0


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5 TiB")]
)
def test_sizes(n_bytes: int, text: str) -> None:
    assert size_text(n_bytes) == text


@pytest.mark.parametrize(
    ("factor", "text"),
    [(5, "5x"), (127.5, "127.5x"), (10_010, "10,010x"), (27_500.25, "27,500.2x")],
)
def test_factors_have_no_exponent(factor: float, text: str) -> None:
    assert factor_text(factor) == text


@pytest.mark.parametrize(("seconds", "text"), [(2.5, "2.50 s"), (0.0123, "12.3 ms")])
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
