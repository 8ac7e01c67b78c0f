"""The sandbox: overhead for a small batch, and effect of hostile models on other tenants.

Run ``python benchmarks/sandbox.py`` (about a minute on two cores) or, for a first look,
``python benchmarks/sandbox.py --quick``. Results go to ``benchmarks/results``. Both sections
compare two runs of the same work in one process, in turns.
"""

import io
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import typer
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import GaussianNB

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks._desk_lists import Caller
from benchmarks._report import BenchmarkReport, Table, TargetCheck
from letheon import NaiveUnlearner, save, state
from letheon.ledger import Ledger
from letheon.ledger.db.tokens import Tokens
from letheon.ledger.models.examine import copy_rows
from letheon.ledger.worker.compute import Computation, compute, compute_apart
from letheon.sandbox import protection
from tests.service.servers import serving

RESULTS = Path(__file__).resolve().parent / "results"
MOST_MS = 150
MOST_SLOWER = 0.2
N_ROWS = 500
PATHS = ("/api/v1/requests", "/api/v1/models", "/api/v1/certificates", "/requests")


def small_table(n_rows: int) -> tuple[Any, Any]:
    """Return rows and labels of a small task."""
    X = np.random.default_rng(0).normal(size=(n_rows, 8))
    return X, (X[:, 0] > 0).astype(int)


def small_job() -> Computation:
    """Return a batch of five people of a small model."""
    X, y = small_table(N_ROWS)
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y)
    return Computation(
        kind="erase",
        model=state.encode(model),
        rows=state.encode(copy_rows(X, y, None)),
        ids=np.arange(5),
        trusted=(),
        judged=None,
        training={"rule": "caller-seed-v1", "beacon": "none", "keyCommitment": "none"},
        since_retrain=0,
        retrain_seconds_per_row=None,
        is_outside=True,
        n_rows=N_ROWS,
    )


def overhead_section(report: BenchmarkReport, n: int) -> None:
    """Time the same batch in this process and in a sandboxed process, in turns."""
    job = small_job()
    start = time.perf_counter()
    compute_apart(job)
    first = time.perf_counter() - start
    times: dict[str, list[float]] = {"here": [], "sandboxed": []}
    for _ in range(n):
        for name, work in (("here", compute), ("sandboxed", compute_apart)):
            start = time.perf_counter()
            work(job)
            times[name].append(1000 * (time.perf_counter() - start))
    rows = [
        (name, *(round(float(np.percentile(durations, q)), 1) for q in (50, 95)))
        for name, durations in times.items()
    ]
    added = float(np.median(times["sandboxed"]) - np.median(times["here"]))
    note = (
        f"A batch of 5 people, {N_ROWS} rows, naive retraining of a naive Bayes model. The first "
        f"call of a process starts Python and imports everything: {first:.1f} s. {protection()}."
    )
    verdict = TargetCheck(
        "sandbox on a small batch, warm, median",
        f"{added:.0f} ms",
        f"<= {MOST_MS} ms",
        added <= MOST_MS,
    )
    report.add(Table("Overhead", ("where", "p50, ms", "p95, ms"), rows, note), [verdict])


def make_hostile_files(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Return an upload whose training does not end."""
    X, y = small_table(N_ROWS)
    model = NaiveUnlearner(SGDClassifier(max_iter=1, tol=None), random_state=0).fit(X, y)
    model.estimator.max_iter = 10**8
    vars(model)["parameters_"] = model._digest_parameters()
    save(model, folder / "endless.letheon")
    table = io.StringIO()
    names = ",".join(f"x{number}" for number in range(X.shape[1]))
    np.savetxt(table, np.column_stack([X, y]), delimiter=",", header=f"{names},y", comments="")
    return {
        "model": ("endless.letheon", (folder / "endless.letheon").read_bytes()),
        "rows": ("rows.csv", table.getvalue().encode()),
    }


@contextmanager
def run_attackers(url: str, token: str, files: dict[str, tuple[str, bytes]]) -> Iterator[list[int]]:
    """Upload repeatedly from two connections; yield the statuses of the responses."""
    stop, statuses = threading.Event(), []

    def attack() -> None:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
            while not stop.is_set():
                fields = {"name": "endless", "target": "y"}
                statuses.append(client.post("/api/v1/models", data=fields, files=files).status_code)
                stop.wait(0.2 if statuses[-1] == 503 else 0)

    threads = [threading.Thread(target=attack) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    try:
        yield statuses
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def measure_calls(caller: Caller, n: int) -> list[float]:
    """Return the times of calls of another tenant, in milliseconds."""
    durations = []
    for number in range(n):
        start = time.perf_counter()
        caller.get(PATHS[number % len(PATHS)])
        durations.append(1000 * (time.perf_counter() - start))
        time.sleep(0.005)
    return durations


def neighbour_section(report: BenchmarkReport, folder: Path, n: int) -> None:
    """Time calls of one tenant, alone and during endless uploads of another tenant."""
    home = folder / "home"
    X, y = small_table(N_ROWS)
    with Ledger.create(home, name="bench") as ledger:
        model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y)
        ledger.models.register(model, X, y, name="risk")
        for person in range(40):
            ledger.requests.submit([person], model="risk")
        tokens = Tokens(ledger, lambda: int(time.time()))
        neighbour, _ = tokens.create("neighbour", "admin")
        attacker, _ = tokens.create("attacker", "operator", tenant="rival")
    rates = ("rate_per_token", "rate_login", "rate_failed", "rate_receipt")
    settings = "".join(f'{rate} = "100000000/minute"\n' for rate in rates)
    (home / "service.toml").write_text(settings + "model_seconds = 5\n")
    with serving(home) as server:
        caller = Caller(server.url, neighbour)
        measure_calls(caller, 100)
        alone = measure_calls(caller, n)
        with run_attackers(server.url, attacker, make_hostile_files(folder)) as statuses:
            beside = measure_calls(caller, n)
        again = measure_calls(caller, n)
    runs = {"alone": alone + again, "beside two endless uploads": beside}
    rows = [
        (
            name,
            len(durations),
            *(round(float(np.percentile(durations, q)), 1) for q in (50, 95, 99)),
        )
        for name, durations in runs.items()
    ]
    slower = float(np.percentile(beside, 95) / np.percentile(alone + again, 95)) - 1
    note = f"The uploads ended with {sorted(set(statuses))}, {len(statuses)} of them."
    verdicts = [
        TargetCheck(
            "p95 of a neighbour beside hostile uploads",
            f"{slower:+.0%}",
            f"within {MOST_SLOWER:.0%}",
            slower <= MOST_SLOWER,
        ),
        TargetCheck("hostile uploads", note, "all refused", set(statuses) <= {422, 429, 503}),
    ]
    columns = ("when", "calls", "p50, ms", "p95, ms", "p99, ms")
    report.add(Table("Neighbours", columns, rows, note), verdicts)


def main(quick: bool = typer.Option(False, help="Small numbers, as a smoke test.")) -> None:
    """Measure and write the report."""
    name = "sandbox_quick" if quick else "sandbox"
    report = BenchmarkReport("The sandbox", {"rows": N_ROWS}, file=RESULTS / name)
    folder = Path(tempfile.mkdtemp(prefix="letheon-bench-"))
    try:
        overhead_section(report, 20 if quick else 100)
        neighbour_section(report, folder, 300 if quick else 600)
    finally:
        shutil.rmtree(folder)
    raise typer.Exit(0 if report.passed else 1)


if __name__ == "__main__":
    typer.run(main)
