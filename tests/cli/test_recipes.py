"""Shell recipes in the docs, run as they are printed: they end with the person erased."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

import letheon
from letheon import Ledger
from letheon.cli import _command, _serve
from letheon.ledger import BatchPlan, Decision, Policy, Step
from letheon.ledger.worker.policy import QueuedRequest, should_start
from tests.cli.ledgers import LEAVING, PEOPLE, call, done, files_in, table

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [sys.executable, "-c", "from letheon.cli import app; app()"]
WAITS = r"1 request waits until (\d+ \w+ \d\d:\d\d) UTC \(50 rows or 72 h\); "
WAITS += "`letheon batch apply --force` applies it now"


def recipe(page: str) -> str:
    """The shell block of a page that erases people."""
    text = (ROOT / page).read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (block_text,) = [block for block in blocks if "request add" in block]
    return str(block_text)


def write_files(folder: Path) -> None:
    """Write the three files that the recipes begin with."""
    X, y = table()
    model = letheon.NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=list(PEOPLE))
    letheon.save(model, folder / "tumours.letheon")
    rows = np.column_stack([PEOPLE, X.astype(str), y.astype(str)])
    lines = ["patient,a,b,c,malignant", *map(",".join, rows)]
    (folder / "train.csv").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "leaving.txt").write_text("\n".join(LEAVING) + "\n", "utf-8")


def run_worker(words: list[str], home: str) -> str:
    env = {**os.environ, "LETHEON_LEDGER": home}
    command = [*SCRIPT, *words]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env, timeout=300)
    return run.stdout


def require_erased(folder: Path) -> None:
    """No removed id is in the model, and the request is closed."""
    with Ledger.open(folder / "erasures") as ledger:
        (request,) = ledger.requests.list()
        assert (request.state, request.n_ids) == ("purged", len(LEAVING))
        with ledger.models.reader("tumours") as reader:
            held = set(reader.model.ids_)
    assert held == set(PEOPLE) - set(LEAVING)


def test_the_recipe_ends_with_the_person_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    said: dict[str, str] = {}
    key, home = "", ""
    for line in recipe("docs/tour.md").splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == "export":
            home = words[1].removeprefix("LETHEON_LEDGER=")
        elif words[:2] == ["letheon", "worker"]:
            said["worker"] = run_worker(words[1:], home)
        else:
            assert words.pop(0) == "letheon"
            here = ["--ledger", home] if home and words[0] != "audit" else []
            result = call(*[key if word == "PUBLIC_KEY" else word for word in words], *here)
            assert result.exit_code == 0, result.output
            said[" ".join(words[:2])] = result.output
            if words[0] == "init":
                (key,) = re.findall(r"[0-9a-f]{64}", result.output)
    require_erased(tmp_path)
    match = re.search(WAITS, said["worker"])
    assert match
    until = datetime.strptime(match[1], "%d %b %H:%M").replace(tzinfo=UTC)
    expected = datetime.now(UTC) + timedelta(hours=72)
    assert abs(until.replace(year=expected.year) - expected) < timedelta(hours=1)
    assert "audit of clinic-1: passed" in said["audit report"]


def test_the_page_of_the_ledger_has_the_same_commands() -> None:
    def commands(page: str) -> list[list[str]]:
        lines = [shlex.split(line, comments=True) for line in recipe(page).splitlines()]
        return [[word for word in line if word not in {"--key", "letter-4711"}] for line in lines]

    assert commands("docs/ledger.md") == commands("docs/tour.md")[:-2]


@pytest.mark.soak
@pytest.mark.parametrize("page", ["docs/tour.md", "docs/ledger.md"])
def test_the_recipe_in_a_shell(page: str, tmp_path: Path) -> None:
    write_files(tmp_path)
    lines = recipe(page).splitlines()
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    first = subprocess.run(
        ["bash", "-ec", lines[0]], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    (key,) = re.findall(r"[0-9a-f]{64}", first.stdout)
    rest = "\n".join(lines[1:]).replace("PUBLIC_KEY", key)
    subprocess.run(["bash", "-ec", rest], cwd=tmp_path, env=env, check=True, timeout=600)
    require_erased(tmp_path)


class Queue:
    """A ledger with nothing due; a request comes after two looks, and it stops in the fifth."""

    def __init__(self) -> None:
        self.looks = 0

    def steps(self, **_: Any) -> Iterator[Step]:
        self.looks += 1
        if self.looks == 5:
            signal.raise_signal(signal.SIGTERM)
        yield from ()

    def plan(self) -> list[BatchPlan]:
        number = 1 if self.looks <= 2 else 2
        when = datetime(2026, 11, 19, 14, tzinfo=UTC)
        decision = Decision(seal=False, kind="erase", reason="waiting", when_next=when)
        return [BatchPlan("m", "default", decision, number, 2, None, (), "50 rows or 72 h")]


def test_a_worker_says_once_until_when_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(_: Path | None) -> Iterator[Queue]:
        yield queue

    queue = Queue()
    monkeypatch.setattr(_command, "open_ledger", opened)
    monkeypatch.setattr(_serve, "_job_runner", lambda *_: lambda: 0)
    said = call("worker", "--interval", "0.1").stdout
    assert queue.looks == 5
    until = r"until 19 Nov 14:00 UTC \(50 rows or 72 h\); `letheon batch apply --force`"
    first, second = said.splitlines()
    assert re.fullmatch(rf"\S+Z waits m 1 request waits {until} applies it now", first)
    assert re.fullmatch(rf"\S+Z waits m 2 requests wait {until} applies them now", second)


RECEIVED = datetime(2026, 11, 16, 14, tzinfo=UTC)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({}, "50 rows or 72 h"),
        ({"k_min_released": 7}, "7 rows or 72 h"),
        ({"oldest_wait": timedelta(minutes=90)}, "50 rows or 90 min"),
        ({"oldest_wait": timedelta(seconds=5000)}, "50 rows or 5000 s"),
        ({"oldest_wait": timedelta(days=60)}, "50 rows or a near deadline"),
        ({"k_min_released": 2}, ""),
    ],
)
def test_the_words_are_those_of_the_policy(policy: dict[str, Any], words: str) -> None:
    from letheon.ledger.worker.policy import describe_wait

    queue, limits = [QueuedRequest(RECEIVED, date(2026, 12, 16), 2)], Policy(**policy)
    decision = should_start(queue, RECEIVED, limits, apply_seconds=1.0)
    assert describe_wait(queue, limits, decision, releases=None) == words


def test_apply_says_what_waits(tmp_path: Path) -> None:
    files, (X, y) = files_in(tmp_path), table()
    with Ledger.create(tmp_path / "home", name="demo") as ledger:
        ledger.models.register(letheon.load(files.model), X, y, ids=list(PEOPLE), name="m")
        ledger.requests.submit(list(LEAVING), model="m", verified=True)
        when = ledger.plan()[0].decision.when_next
    here = ("--ledger", tmp_path / "home")
    sentence = rf"1 request waits until {when:%-d %b %H:%M} UTC \(50 rows or 72 h\); `letheon"
    assert re.search(f"nothing is due\nm: {sentence}", call("batch", "apply", *here).stdout)
    assert done("batch", "apply", *here) == []
    said = call("worker", "--once", "--json", *here).stdout
    assert [json.loads(line)["what"] for line in said.splitlines()] == ["waits"]


def test_nothing_waits_where_nothing_is_queued(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done("init", home, "--name", "demo")
    assert call("worker", "--once", "--ledger", home).stdout == ""
    assert call("batch", "apply", "--ledger", home).stdout == "nothing is due\n"
