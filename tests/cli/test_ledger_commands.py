"""Every command of the ledger: it exists, explains itself with an example, knows JSON."""

import re
import runpy
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import letheon
from letheon.cli import app
from letheon.ledger import Ledger, Policy
from tests.cli.ledgers import LEAVING, PEOPLE, call, files_in, table

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [sys.executable, "-c", "from letheon.cli import app; app()"]
ASKED_FOR = """
    init | worker | doctor
    model add | model list | model show
    request add | request list | request show | request verify | request cancel | request retry
    request hold | request release | request reject | request extend | request tell
    request close | request await | request approve
    batch plan | batch apply
    cert show | cert verify | cert chain
    audit replay | audit bound | audit residue | audit report | audit verifier
    ledger verify | ledger export | ledger upgrade | ledger checkpoint
    key list | key rotate | key revoke
    store add | store list | store remove
"""
NAMES = [" ".join(name.split()) for name in re.split(r"\||\n", ASKED_FOR) if name.strip()]


def walk(entry: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    children = getattr(entry, "commands", None)
    if children is None:
        yield name, entry
        return
    for word, child in children.items():
        yield from walk(child, f"{name} {word}".strip())


COMMANDS = dict(walk(get_command(app)))
OLDER = {"demo", "plan", "inspect", "datasets", "bench"}
OF_LEDGER = sorted(COMMANDS.keys() - OLDER)


def test_none_is_missing() -> None:
    assert set(NAMES) <= COMMANDS.keys()


def unframed(output: str) -> str:
    return " ".join(re.sub("[│╭╮╰╯─]", " ", output).split())


@pytest.mark.parametrize("name", OF_LEDGER)
def test_each_explains_itself(name: str) -> None:
    result = call(*name.split(), "--help")
    said = unframed(result.output)
    command = COMMANDS[name]
    assert result.exit_code == 0
    assert f"Example: letheon {name}" in said
    assert "--json" in said
    assert "{" not in said
    assert "<bool>" not in said
    assert [
        param.name for param in command.params if param.name != "help" and param.help[-1] != "."
    ] == []
    assert [param.opts for param in command.params if len(param.opts) > 1] == []


@pytest.mark.parametrize("name", OF_LEDGER)
def test_each_example_can_be_parsed(name: str) -> None:
    command = COMMANDS[name]
    example = " ".join(command.help.partition("Example: ")[2].split())
    words = shlex.split(example.partition(" < ")[0])[1 + len(name.split()) :]
    context = command.make_context(name, words, resilient_parsing=False)
    assert context.params


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_prints_brackets(name: str) -> None:
    output = unframed(call(*name.split(), "--help").output)
    assert unframed(COMMANDS[name].help.replace("\\[", "[")) in output


def test_help_names_the_extra_of_the_desk() -> None:
    assert "If letheon[service] is installed" in unframed(call("worker", "--help").output)


def test_help_says_where_ids_stay() -> None:
    said = unframed(call("request", "add", "--help").output)
    assert (
        "Ids on the command line stay in the shell history; use --ids-file - to avoid this" in said
    )


def test_the_page_of_commands_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_commands.py"))
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == made["make_page"](), "run python docs/make_commands.py"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_stands_on_the_page(name: str) -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    section = re.search(rf"^##+ letheon {name}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert section is not None
    for parameter in COMMANDS[name].params:
        word = parameter.opts[0]
        assert word == "--help" or not word.startswith("-") or f"`{word}" in section[1]


def test_help_does_not_load_a_database() -> None:
    code = "import letheon.cli, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "numpy", "cryptography", "letheon.ledger"} & set(run.stdout.split())


def test_a_real_worker_stops_on_a_signal_and_loses_nothing(tmp_path: Path) -> None:
    files, (X, y) = files_in(tmp_path), table()
    home = tmp_path / "home"
    with Ledger.create(home, name="demo", policy=Policy(k_min=1, k_min_released=1)) as ledger:
        ledger.models.register(letheon.load(files.model), X, y, ids=list(PEOPLE), name="m")
        request = ledger.requests.submit(list(LEAVING), model="m", verified=True)
    words = [*SCRIPT, "worker", "--interval", "600", "--ledger", str(home)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        watchdog = threading.Timer(300, worker.kill)
        watchdog.start()
        first = worker.stdout.readline()
        watchdog.cancel()
        worker.send_signal(signal.SIGTERM)
        rest, _ = worker.communicate(timeout=300)
    assert worker.returncode == 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ applied 1 m 38 rows remain\n", first)
    assert not any(person in first + rest for person in PEOPLE)
    with Ledger.open(home) as ledger:
        ledger.run_once()
        assert ledger.requests.get(request.id).state == "purged"
