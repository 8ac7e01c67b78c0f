"""The erasure desk: lists of 100,000 requests, load for a minute, memory over half an hour.

Run ``python benchmarks/desk.py`` (about fifteen minutes on two cores), ``--quick`` for a first look
(about two minutes), ``--soak 30`` to measure memory over thirty minutes too. Results go to
``benchmarks/results``. Server and clients share the machine, and each call goes through HTTP.
"""

import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import typer

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks._desk_lists import LOADED, MODEL, Caller, Filled, fill_ledger, list_paths, time_list
from benchmarks._report import BenchmarkReport, Table, TargetCheck
from letheon.ledger import Ledger
from tests.postgres import MISSING, PostgresServer, find_binaries
from tests.service.crowd import FilingClients, FilingOrder, repeat_each
from tests.service.servers import DeskServer as Desk
from tests.service.servers import serving

RESULTS = Path(__file__).resolve().parent / "results"
MOST_MS = 150
N_CLIENTS = 200
MOST_GROWTH = 0.05
SAMPLE_SECONDS = 10.0


@contextmanager
def serve_desk(home: Path, filled: Filled) -> Iterator[Desk]:
    """Serve a ledger with its worker, with rate limits that a benchmark does not reach."""
    rates = ("rate_per_token", "rate_login", "rate_failed", "rate_receipt")
    text = "".join(f'{rate} = "100000000/minute"\n' for rate in rates)
    (home / "service.toml").write_text(text)
    with serving(home) as server:
        server.tokens["admin"] = filled.token
        yield server


def list_section(report: BenchmarkReport, server: Desk, kind: str, n: int) -> None:
    """Time every list page and API list, one after the other."""
    caller = Caller(server.url, server.tokens["admin"])
    rows = [time_list(caller, path, n) for path in list_paths(caller)]
    slowest = max(rows, key=lambda row: row.p95)
    verdict = TargetCheck(
        f"{kind}: slowest of {len(rows)} lists, p95",
        f"{slowest.p95:.0f} ms ({slowest.path})",
        f"<= {MOST_MS} ms",
        slowest.p95 <= MOST_MS,
    )
    columns = ("list", "p50, ms", "p95, ms", "p99, ms", "KiB")
    note = f"Each called {n} times over one connection, after three calls that are not timed."
    shown = [(row.path, *(round(one, 1) for one in row[1:])) for row in rows]
    report.add(Table(f"Lists on {kind}", columns, shown, note), [verdict])


def load_section(report: BenchmarkReport, server: Desk, kind: str, seconds: float) -> None:
    """File requests from many clients: each key twice, and a fifth of them disconnect first."""
    wishes = (FilingOrder(f"load-{number}", number) for number in itertools.count())
    crowd = FilingClients(server.url, server.tokens["admin"], LOADED, N_CLIENTS)
    crowd.send(repeat_each(wishes), until=time.monotonic() + seconds)
    acknowledged = {(answer.key, answer.request) for answer in crowd.answers}
    keys = {answer.key for answer in crowd.answers}
    strange = sum(answer.status not in (200, 201) for answer in crowd.answers)
    with Ledger.open(server.home) as ledger:
        stored = {one.id for one in ledger.requests.iterate(model=LOADED)}
    lost = len({request for _, request in acknowledged} - stored)
    doubled = max(len(acknowledged), len(stored)) - len(keys)
    p50, p95, p99 = np.percentile([1000 * answer.seconds for answer in crowd.answers], (50, 95, 99))
    rate = len(crowd.answers) / seconds
    row = (N_CLIENTS, len(crowd.answers), len(keys), len(stored), crowd.n_hung_up)
    columns = ("clients", "answers", "keys", "stored", "hung up", "per s", "p50, ms", "p99, ms")
    shown = [(*row, round(rate), round(p50), round(p99))]
    verdicts = [
        TargetCheck(
            f"{kind}: {N_CLIENTS} clients for {seconds:.0f} s: lost, doubled, other answers",
            f"{lost}, {doubled}, {strange}",
            "0, 0, 0",
            (lost, doubled, strange) == (0, 0, 0),
        )
    ]
    report.add(Table(f"A crowd on {kind}", columns, shown, f"p95 is {p95:.0f} ms."), verdicts)


def soak_section(report: BenchmarkReport, server: Desk, minutes: float) -> None:
    """Measure memory of server and worker while lists are read and requests are filed."""
    stop, samples = threading.Event(), []
    processes = {"server": server.process.pid, "worker": server.worker()}

    def sample() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            samples.append([read_memory(pid) for pid in processes.values()])

    watcher = threading.Thread(target=sample)
    watcher.start()
    n_calls = run_calls(server, time.monotonic() + 60 * minutes)
    stop.set()
    watcher.join()
    table, sixth = np.array(samples), max(len(samples) // 6, 1)
    rows, verdicts = [], []
    for place, name in enumerate(processes):
        # The first sixth fills caches; after that memory must not grow.
        early = float(np.median(table[sixth : 2 * sixth, place]))
        late = float(np.median(table[-sixth:, place]))
        growth = late / early - 1
        rows.append(
            (name, round(early), round(late), round(table[:, place].max()), f"{growth:.1%}")
        )
        what = f"memory of the {name} over {minutes:g} minutes, {n_calls} calls"
        verdicts.append(
            TargetCheck(what, f"{growth:+.1%}", f"<= {MOST_GROWTH:.0%}", growth <= MOST_GROWTH)
        )
    columns = ("process", "early, MiB", "late, MiB", "most, MiB", "growth")
    note = f"Medians of the second and of the last sixth of {len(samples)} samples."
    report.add(Table("Memory", columns, rows, note), verdicts)


def run_calls(server: Desk, until: float) -> int:
    """Read every list in turn and file a few requests until `until`; return the calls."""
    caller, n_calls = Caller(server.url, server.tokens["admin"]), 0
    places = itertools.cycle(list_paths(caller))
    numbers = itertools.count(10**6)
    crowd = FilingClients(server.url, server.tokens["admin"], MODEL, n_clients=4)
    while time.monotonic() < until:
        for path in itertools.islice(places, 20):
            caller.get(path)
        # These ids are not in the model, so each request is refused and the ledger does not grow.
        crowd.send(
            [FilingOrder(f"soak-{number}", number) for number in itertools.islice(numbers, 4)]
        )
        n_calls += 24
        crowd.answers.clear()
    return n_calls


def read_memory(pid: int) -> float:
    """Return the private memory of a process in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) / 1024


def open_databases(chosen: list[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the URL of each database."""
    if "sqlite" in chosen:
        yield "SQLite", None
    if "postgresql" not in chosen:
        return
    binaries = find_binaries()
    if binaries is None:
        print(MISSING, file=sys.stderr)
        return
    server = PostgresServer(binaries, durable=True)
    try:
        yield "PostgreSQL", server.create()
    finally:
        server.close()


def main(
    quick: bool = typer.Option(False, help="Small numbers, as a smoke test."),
    only: str = typer.Option("sqlite,postgresql", help="Databases, separated by commas."),
    soak: float = typer.Option(0.0, help="Minutes of the soak on the first database."),
) -> None:
    """Measure and write the report."""
    n_requests, n_load = (3_000, 20_000) if quick else (100_000, 100_000)
    n_calls, seconds = (10, 5.0) if quick else (100, 60.0)
    is_part = quick or set(only.split(",")) != {"sqlite", "postgresql"}
    report = BenchmarkReport(
        "The erasure desk",
        {"requests": n_requests, "clients": N_CLIENTS, "databases": only, "soak, minutes": soak},
        file=RESULTS / ("desk_quick" if is_part else "desk"),
    )
    folder = Path(tempfile.mkdtemp(prefix="letheon-bench-"))
    try:
        for kind, database in open_databases(only.split(",")):
            home = folder / kind
            filled = fill_ledger(home, n_requests, n_load, database=database)
            report.settings[f"{kind} filled in, s"] = round(filled.seconds)
            with serve_desk(home, filled) as server:
                list_section(report, server, kind, n_calls)
                load_section(report, server, kind, seconds)
                if soak:
                    soak_section(report, server, soak)
                    soak = 0.0
    finally:
        shutil.rmtree(folder)
    raise typer.Exit(0 if report.passed else 1)


if __name__ == "__main__":
    typer.run(main)
