"""Requests acknowledged in a second: SQLite against the disk, PostgreSQL with many clients."""

import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import text

from benchmarks._ledger_disk import BareCommits, Rate, lap, rate_of
from benchmarks._ledger_people import names_of, new_ledger
from letheon.ledger import Ledger
from letheon.ledger.settings import Settings

MODEL = "bench"
N_TURNS = 8
N_UNTIMED = 3
BARE, ONE = "bare commits", "one client"
THREADS, VERIFIED = "20 threads of one process", "the same, verified=True"
PROCESSES = "2 processes with 10 threads each"
Work = Sequence[tuple[str, str]]
"""Idempotency key and person, for each request."""


class Done(NamedTuple):
    """What clients measured and got."""

    seconds: list[float]
    wall: float
    acks: list[tuple[str, str]]
    """Key and request, for each acknowledgement."""

    @property
    def rate(self) -> Rate:
        """Acknowledgements a second."""
        return rate_of(self.seconds, self.wall)


def joined(parts: Sequence[Done], wall: float) -> Done:
    """Return what several clients did within a time."""
    seconds = [one for part in parts for one in part.seconds]
    return Done(seconds, wall, [ack for part in parts for ack in part.acks])


def by_one(ledger: Ledger, work: Work, verified: bool = False) -> Done:
    """Submit one request after the other."""
    seconds, acks = [], []
    for key, person in work:
        start = time.perf_counter()
        request = ledger.requests.submit([person], model=MODEL, key=key, verified=verified)
        seconds.append(time.perf_counter() - start)
        acks.append((key, request.id))
    return Done(seconds, sum(seconds), acks)


def by_threads(ledger: Ledger, work: Work, n_threads: int, verified: bool = False) -> Done:
    """Submit from several threads of this process, which share commits."""
    parts: list[Done] = []

    def client(number: int) -> None:
        parts.append(by_one(ledger, work[number::n_threads], verified))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(n_threads)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return joined(parts, time.perf_counter() - start)


def by_processes(
    home: Path, work: Work, n_processes: int, n_threads: int = 1, verified: bool = False
) -> Done:
    """Submit from several processes; the first requests of each are not timed."""

    def client(number: int, ready: Callable[[], object]) -> Done:
        part = work[number::n_processes]
        with Ledger.open(home) as ledger:
            first = by_one(ledger, part[:N_UNTIMED], verified)
            ready()
            rest = part[N_UNTIMED:]
            if n_threads > 1:
                done = by_threads(ledger, rest, n_threads, verified)
            else:
                done = by_one(ledger, rest, verified)
            return done._replace(acks=[*first.acks, *done.acks])

    return in_processes(client, n_processes)


def in_processes(client: Callable[[int, Callable[[], object]], Done], n: int) -> Done:
    """Run clients, each in a process; the clock runs from the first start to the last end.

    A client calls what it is given when it is ready to start.
    """
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(n), context.SimpleQueue()

    def run(number: int) -> None:
        started: list[float] = []

        def ready() -> None:
            barrier.wait()
            started.append(time.monotonic())

        done = client(number, ready)
        answers.put((done, started[0], time.monotonic()))

    clients = [context.Process(target=run, args=(number,)) for number in range(n)]
    for process in clients:
        process.start()
    parts = [answers.get() for _ in clients]
    for process in clients:
        process.join()
    wall = max(end for _, _, end in parts) - min(start for _, start, _ in parts)
    return joined([part for part, _, _ in parts], wall)


def with_repeats(people: Sequence[str], share: float, seed: int = 0) -> Work:
    """Return requests of which a share repeats the key and the person of another one."""
    rng = random.Random(seed)
    n_repeats = round(len(people) * share / (1 - share))
    work = [(f"key-{person}", person) for person in people]
    work += rng.choices(work, k=n_repeats)
    rng.shuffle(work)
    return work


class Effects(NamedTuple):
    """Whether each key had one effect."""

    n_acks: int
    n_keys: int
    n_stored: int
    n_ids_of_a_key: int
    """Most requests that one key was answered with."""

    @property
    def right(self) -> bool:
        """Whether there is one request for each key, and everybody was told the same."""
        return self.n_keys == self.n_stored and self.n_ids_of_a_key == 1


def effects(ledger: Ledger, acks: Sequence[tuple[str, str]]) -> Effects:
    """Compare what clients were told with what is stored."""
    by_key: dict[str, set[str]] = {}
    for key, request in acks:
        by_key.setdefault(key, set()).add(request)
    with ledger._core.database.reading() as connection:
        stored = {row[0] for row in connection.execute(text("SELECT id FROM requests"))}
    known = {request for found in by_key.values() for request in found}
    extra = len(stored ^ known)
    return Effects(
        len(acks), len(by_key), len(known) + extra, max(len(found) for found in by_key.values())
    )


def sqlite_rates(folder: Path, journal: str, n: int, n_clients: int) -> dict[str, Rate]:
    """Return rates of bare commits, of one client and of many layouts, measured in turns.

    The turns are short, so that whatever else the disk does meets all alike.
    """
    home = folder / f"home-{journal}"
    n_people = 4 * n + N_TURNS * n_clients
    new_ledger(home, n_people)
    replace(Settings.read(home), journal=journal).write(home)
    people, bare = iter(names_of(n_people)), BareCommits(folder / f"bare-{journal}.db", journal)
    names = (BARE, THREADS, VERIFIED, ONE, PROCESSES)
    done: dict[str, list[Done]] = {name: [] for name in names}
    size = n // N_TURNS
    for _ in range(N_TURNS):
        seconds = [lap(bare.commit) for _ in range(size)]
        done[BARE].append(Done(seconds, sum(seconds), []))
        with Ledger.open(home) as ledger:
            by_threads(ledger, _work(people, n_clients), n_clients)  # not timed
            done[THREADS].append(by_threads(ledger, _work(people, size), n_clients))
            done[VERIFIED].append(by_threads(ledger, _work(people, size), n_clients, True))
            done[ONE].append(by_one(ledger, _work(people, size)))
        done[PROCESSES].append(by_processes(home, _work(people, size), 2, n_clients // 2))
    bare.close()
    return {
        name: joined(parts, sum(part.wall for part in parts)).rate for name, parts in done.items()
    }


def _work(people: Iterator[str], n: int) -> Work:
    return [(f"key-{person}", person) for person in islice(people, n)]


def postgres_bare(url: str, n: int, n_clients: int) -> Rate:
    """Return how many bare rows a server commits for so many clients."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (a text)")

    def client(_: int, ready: Callable[[], object]) -> Done:
        with psycopg.connect(url, autocommit=True) as connection:
            ready()
            insert = "INSERT INTO bare VALUES ('one row of a request')"
            seconds = [lap(lambda: connection.execute(insert)) for _ in range(n // n_clients)]
            return Done(seconds, sum(seconds), [])

    return in_processes(client, n_clients).rate


def postgres_rate(
    home: Path, url: str, n: int, n_clients: int, *, verified: bool
) -> tuple[Rate, Effects]:
    """Return the rate of many clients on a server, a fifth of them repeats, and what it did."""
    new_ledger(home, n, database=url)
    done = by_processes(home, with_repeats(names_of(n), 0.2), n_clients, verified=verified)
    with Ledger.open(home) as ledger:
        return done.rate, effects(ledger, done.acks)


def figures(rate: Rate) -> tuple[Any, ...]:
    """Return a rate as cells of a table."""
    return (rate.per_second, rate.p50, rate.p99)
