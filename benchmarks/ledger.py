"""The ledger: requests acknowledged per second, batches from request to purge, proofs, sizes.

Run ``python benchmarks/ledger.py`` (about five minutes on two cores) or, for a first look,
``python benchmarks/ledger.py --quick`` (under a minute). Results go to ``benchmarks/results``.
Files are written to the disk of the temporary directory, so the results depend on that disk.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks._ledger_submit import (
    BARE,
    THREADS,
    figures,
    make_batch_row,
    make_log_table,
    make_slot_table,
    measure_bare_commits,
    measure_postgres,
    measure_sqlite,
)
from benchmarks._report import BenchmarkReport, Table, TargetCheck
from tests.postgres import MISSING, PostgresServer, find_binaries

RESULTS = Path(__file__).resolve().parent / "results"
SECTIONS = ("sqlite", "postgresql", "batches", "trees")
DISK_SHARE = 0.7
POSTGRES_RATE = 300
N_CLIENTS = 20


def sqlite_section(report: BenchmarkReport, folder: Path, n: int) -> None:
    """Compare submissions on SQLite with bare commits on the same disk, in both journal modes."""
    rows, verdicts = [], []
    for journal in ("wal", "delete"):
        rates = measure_sqlite(folder, journal, n, N_CLIENTS)
        bare = rates[BARE].per_second
        rows += [
            (journal, name, *figures(rate), rate.per_second / bare) for name, rate in rates.items()
        ]
        share = rates[THREADS].per_second / bare
        reached = f"{share:.0%} of {bare:,.0f}/s"
        what = f"SQLite ({journal}), {THREADS}: share of the disk's synced commit rate"
        verdicts.append(TargetCheck(what, reached, f">= {DISK_SHARE:.0%}", share >= DISK_SHARE))
    columns = ("journal", "who", "per second", "p50, ms", "p99, ms", "share of bare commits")
    note = (
        "A bare commit adds one short row to a table of its own, with the same journal mode and "
        "synchronous level, on the same file system, in turns with the others. A request is "
        "`ledger.requests.submit([id], model=..., key=...)`, and `verified=True` where it says so. "
        "*20 threads of one process*, which share commits, is what decides; the other layouts are "
        "for information: one client waits for the disk and for Python in turn, and two processes "
        "wait for each other's transactions too."
    )
    report.add(Table("Requests acknowledged on SQLite", columns, rows, note), verdicts)


def postgres_section(report: BenchmarkReport, folder: Path, n: int) -> None:
    """Measure submissions of many processes on a server that syncs every commit."""
    binaries = find_binaries()
    if binaries is None:
        print(MISSING, file=sys.stderr)
        report.settings["left out"] = "postgresql: no server found"
        return
    server = PostgresServer(binaries, durable=True)
    try:
        bare = measure_bare_commits(server.create(), n, N_CLIENTS)
        runs = {
            name: measure_postgres(
                folder / f"home-{name}", server.create(), n, N_CLIENTS, verified=verified
            )
            for name, verified in (("requests", False), ("verified", True))
        }
    finally:
        server.close()
    rows: list[tuple[Any, ...]] = [(BARE, N_CLIENTS, *figures(bare), "", "", "")]
    for name, (rate, seen) in runs.items():
        counts = (seen.n_acks, seen.n_keys, seen.n_stored)
        rows.append((name, N_CLIENTS, *figures(rate), *counts))
    columns = (
        "what",
        "clients",
        "per second",
        "p50, ms",
        "p99, ms",
        "acknowledged",
        "keys",
        "stored",
    )
    note = (
        "Processes, each with a connection of its own, after three requests each that are not "
        "timed; a fifth of the requests repeats the key and the body of another one, at any "
        "time and from any client. fsync is on. A bare commit adds one short row to a table of its "
        "own. *verified*: the same with `verified=True`, for information."
    )
    rate = runs["requests"][0]
    effects = [seen for _, seen in runs.values()]
    one = ", ".join(f"{seen.n_stored} requests for {seen.n_keys} keys" for seen in effects)
    verdicts = [
        TargetCheck(
            f"PostgreSQL, {N_CLIENTS} clients, 20 % repeats: acknowledged requests",
            f"{rate.per_second:,.0f}/s",
            f">= {POSTGRES_RATE}/s",
            rate.per_second >= POSTGRES_RATE,
        ),
        TargetCheck(
            "PostgreSQL: each key has exactly one effect",
            one,
            "equal",
            all(seen.right for seen in effects),
        ),
    ]
    report.add(Table("Requests acknowledged on PostgreSQL", columns, rows, note), verdicts)


def batch_section(report: BenchmarkReport, folder: Path, sizes: tuple[int, ...]) -> None:
    """Measure the time until a batch is applied, has a certificate and is purged."""
    rows = [
        make_batch_row(folder / f"{kind}-{n_rows}-{n_erased}", n_rows, n_erased, kind)
        for n_rows in sizes
        for kind, n_erased in (("naive", 20), ("forest", 20), ("forest", 500))
    ]
    columns = (
        "model",
        "rows",
        "erased",
        "register, s",
        "apply, s",
        "certify, s",
        "purge, s",
        "certificate, KiB",
        "attestation, KiB",
        "proof, KiB",
        "events",
        "state",
    )
    note = (
        "One request of so many people, SQLite. *apply*: lease, sweep, intent, computation, blobs, "
        "proof, publication. The forest has 10 trees. *purge*: files are overwritten and removed, "
        "keys destroyed, and every file of the ledger is searched for traces."
    )
    done = all(row[-1] == "purged" for row in rows)
    verdict = TargetCheck("every batch ends purged", str([row[-1] for row in rows]), "all", done)
    report.add(Table("From the request to the purge", columns, rows, note), [verdict])


def tree_section(report: BenchmarkReport, slots: int, sizes: tuple[int, ...]) -> None:
    """Measure the trees alone."""
    report.add(make_slot_table(slots, (1, 100, 1_000)))
    report.add(make_log_table(sizes))


def main(
    quick: bool = typer.Option(False, help="Small numbers, as a smoke test."),
    only: str = typer.Option(",".join(SECTIONS), help="Sections, separated by commas."),
) -> None:
    """Measure and write the report."""
    chosen = only.split(",")
    is_part = quick or set(chosen) != set(SECTIONS)
    report = BenchmarkReport(
        "The erasure ledger",
        {"clients": N_CLIENTS, "sections": only},
        file=RESULTS / ("ledger_quick" if is_part else "ledger"),
    )
    folder = Path(tempfile.mkdtemp(prefix="letheon-bench-"))
    n = 400 if quick else 4_000
    try:
        if "sqlite" in chosen:
            sqlite_section(report, folder, 4 * n if quick else n)
        if "postgresql" in chosen:
            postgres_section(report, folder, n)
        if "batches" in chosen:
            batch_section(report, folder, (2_000,) if quick else (10_000, 100_000))
        if "trees" in chosen:
            tree_section(report, *((1 << 14, (1_000,)) if quick else (1 << 20, (1_000, 1_000_000))))
    finally:
        shutil.rmtree(folder)
    raise typer.Exit(0 if report.passed else 1)


if __name__ == "__main__":
    typer.run(main)
