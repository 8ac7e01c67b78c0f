"""Copies of a ledger's database at every step of a story, and putting one of them back."""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sklearn.naive_bayes import GaussianNB

from letheon import NaiveUnlearner
from letheon.ledger import Ledger, Policy
from letheon.ledger import core as faults
from tests.ledger.databases import NOON, SettableClock
from tests.ledger.homes import IDS, X, Y, fitted, person
from tests.postgres import PostgresServer

_NUMBERS = itertools.count()
KINDS = ("wal", "delete", "postgresql")
STEPS = ("registered", "filed", "erased", "second model", "filed again", "retrained", "rotated")


@dataclass
class LedgerTimeline:
    """A ledger that lives for a while, and its database as it was after each step.

    Attributes
    ----------
    home
        Folder of the ledger.
    kind
        ``wal`` or ``delete`` for SQLite's journal, or ``postgresql``.
    server
        For PostgreSQL.
    copies
        Folder of a copy, or name of a database, by step.
    """

    home: Path
    kind: str = "wal"
    server: PostgresServer | None = None
    clock: SettableClock = field(default_factory=lambda: SettableClock(NOON))
    copies: dict[str, Path | str] = field(default_factory=dict)

    def create(self) -> Ledger:
        url = None if self.server is None else self.server.create()
        policy = Policy(pin_seconds=1)
        ledger = Ledger.create(
            self.home, name="test", policy=policy, clock=self.clock, database=url
        )
        if self.kind != "delete":
            return ledger
        ledger.close()
        toml = self.home / "letheon.toml"
        toml.write_text('journal = "delete"\n' + toml.read_text())
        return self.open()

    def open(self, home: Path | None = None) -> Ledger:
        return Ledger.open(home or self.home, clock=self.clock)

    @property
    def backup(self) -> Path:
        """A copy of the whole home, files and all, after the second model was registered."""
        return self.home.with_name("backup")

    def play(self) -> None:
        """Live through all steps, with a copy of the database after each, and within them."""
        with self.create() as ledger:
            faults.hook = None if self.server else self._keep_moment
            try:
                for step in STEPS:
                    self.clock.now += 60
                    _DO[step](ledger)
                    self.keep(step, ledger)
                    if step == "second model":
                        shutil.copytree(self.home, self.backup)
            finally:
                faults.hook = None

    def _keep_moment(self, name: str) -> None:
        if name.startswith(("register", "publish", "certify", "purge", "mark")):
            step = f"{len(self.copies)} {name}"
            self.copies[step] = self.home.with_name(f"copy {step}")
            copy_database(self.home, Path(self.copies[step]))

    def keep(self, step: str, ledger: Ledger) -> None:
        """Copy the database as it is now."""
        if self.server is None:
            self.copies[step] = self.home.with_name(f"copy-{len(self.copies)}")
            copy_database(self.home, Path(self.copies[step]))
            return
        ledger._core.database.dispose()
        url = ledger.settings.database or ""
        self.copies[step] = self.server.create(url.rpartition("/")[2])

    def home_with(self, step: str) -> Path:
        """Return a copy of the home as it is, with the database as it was after a step."""
        home = self.home.with_name(f"home {next(_NUMBERS)} with {step}")
        shutil.copytree(self.home, home, ignore=shutil.ignore_patterns("ledger.db*"))
        copy = self.copies[step]
        if isinstance(copy, Path):
            copy_database(copy, home)
        else:
            toml = home / "letheon.toml"
            lines = toml.read_text().splitlines(keepends=True)
            url = [
                f'database = "{copy}"\n' if line.startswith("database") else line for line in lines
            ]
            toml.write_text("".join(url))
        return home


def copy_database(source: Path, target: Path) -> None:
    """Copy SQLite's files as they lie there, the write-ahead log among them."""
    target.mkdir(exist_ok=True)
    for path in source.glob("ledger.db*"):
        shutil.copyfile(path, target / path.name)


def inventory(home: Path) -> dict[str, bytes]:
    """Return every file of a home but the database and locks."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file()
        and not path.name.startswith(("ledger.db", "letheon.toml", ".high", ".lock"))
    }


def other_model() -> NaiveUnlearner:
    return NaiveUnlearner(GaussianNB(var_smoothing=1e-6), random_state=1).fit(X, Y, ids=IDS)


def _register(ledger: Ledger) -> None:
    ledger.models.register(fitted(), X, Y, ids=IDS, name="risk")


def _file(ledger: Ledger) -> None:
    ledger.requests.submit([person(1), person(2)], model="risk", verified=True)


def _erase(ledger: Ledger) -> None:
    ledger.run_once(force=True)


def _register_second(ledger: Ledger) -> None:
    kept = ledger.models.without_blocked(X, Y, IDS)
    model = NaiveUnlearner(GaussianNB(), random_state=2).fit(*kept[:2], ids=kept[2])
    ledger.models.register(model, *kept[:2], ids=kept[2], name="churn")


def _file_again(ledger: Ledger) -> None:
    ledger.requests.submit([person(3)], model="risk", verified=True)
    ledger.requests.submit([person(4)], model="churn", verified=True)


def _retrain(ledger: Ledger) -> None:
    ledger.models.retrain("risk")


def _rotate(ledger: Ledger) -> None:
    ledger.keys.rotate()
    ledger.run_once(force=True)


_DO: dict[str, Callable[[Ledger], None]] = dict(
    zip(
        STEPS,
        (_register, _file, _erase, _register_second, _file_again, _retrain, _rotate),
        strict=True,
    )
)
