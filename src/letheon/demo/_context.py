"""Shared state of the demo steps: data, models and results."""

import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from letheon import NaiveUnlearner, Receipt, SISAClassifier
from letheon.terminal import make_table, print_table, time_text

N_TRAIN = 1_500
ROWS_PER_PERSON = 4
SHARDS, SLICES, PASSES = 5, 8, 27
NAIVE = "naive retraining"
SHARDED = f"SISA, {SHARDS} shards"
SLICED = f"SISA, {SHARDS} shards x {SLICES} slices"


@dataclass
class DemoContext:
    """Rows with ids, models trained on them, and receipts of removals."""

    console: Console
    seed: int
    X: NDArray[np.float64]
    y: NDArray[np.int64]
    ids: NDArray[np.str_]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.int64]
    models: dict[str, Any]
    fit_seconds: dict[str, float] = field(default_factory=dict)
    receipts: dict[str, list[Receipt]] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)

    def pick_ids(self, number: int) -> list[str]:
        """Return `number` ids, evenly spaced among all ids."""
        names = sorted(set(self.ids.tolist()))
        return names[:: len(names) // number][:number]

    def pick_remaining_id(self) -> str:
        """Return an id that was not forgotten."""
        ids: set[str] = set(self.ids.tolist())
        return max(ids - set(self.forgotten))

    def fit(self, model: Any, without: Collection[str] = ()) -> Any:
        """Fit a model on all rows except those of the ids in `without`, and return the model."""
        rows = ~np.isin(self.ids, list(without))
        with ignore_warnings():
            return model.fit(self.X[rows], self.y[rows], ids=self.ids[rows])

    def fresh_fit(self, name: str) -> Any:
        """Return a fresh fit of a model on the remaining rows, with the same seed."""
        model = self.models[name]
        return self.fit(clone(model).set_params(random_state=model.seed_), self.forgotten)

    def accuracy_text(self, model: Any) -> str:
        """Return the accuracy on the test rows as text."""
        return f"{model.score(self.X_test, self.y_test):.1%}"

    def explain_missing(self, modules: Collection[str], why: str, extra: str) -> bool:
        """Return whether a module of an extra is missing, and print how to install the extra."""
        is_lacking = any(find_spec(name) is None for name in modules)
        if is_lacking:
            self.print_text(why)
            self.print_quote(f"pip install 'letheon[{extra}]'")
        return is_lacking

    def print_text(self, text: str) -> None:
        """Print a paragraph."""
        self.console.print(text)

    def print_quote(self, text: str, style: str = "cyan") -> None:
        """Print an indented quotation of the library's output."""
        self.console.print(Padding(Text(text, style), (0, 0, 0, 2)))

    def check(self, fact: bool, claim: str) -> str:
        """Return "yes" if the fact is true; otherwise record the false claim and return "NO"."""
        if not fact:
            self.failures.append(claim)
        return "yes" if fact else "NO"

    def show_table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print a table; all columns except the first are right-aligned."""
        table = make_table(columns, rows, right=columns[1:], no_wrap=columns, pad_edge=False)
        print_table(self.console, table)

    def show_facts(self, facts: Mapping[str, str], indent: str = "") -> None:
        """Print each name with its explanation."""
        grid = Table.grid(padding=(0, 2))
        for name, text in facts.items():
            grid.add_row(indent + name, text)
        self.console.print(grid)

    def show_times(self, seconds: dict[str, float]) -> None:
        """Print times in seconds, each with its speed-up over the first."""
        first = next(iter(seconds.values()))
        rows = [(what, time_text(t), f"{first / t:,.1f}x") for what, t in seconds.items()]
        self.show_table(("what", "mean time", "speed-up"), rows)

    def progress(self) -> Progress:
        """Return a progress display; without a terminal it shows only the final state."""
        columns = (
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        return Progress(*columns, console=self.console)


def make_context(console: Console, seed: int) -> DemoContext:
    """Return a context with handwritten digits of fictional people and three unfitted models."""
    X, y = load_digits(return_X_y=True)
    X = X / 16.0
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:N_TRAIN], order[N_TRAIN:]
    owners = np.arange(N_TRAIN) % (N_TRAIN // ROWS_PER_PERSON)
    ids = np.array([f"person-{owner:03d}" for owner in owners])
    return DemoContext(console, seed, X[train], y[train], ids, X[test], y[test], _make_models(seed))


def forget_ids(model: Any, people: list[str]) -> Receipt:
    """Forget some ids in a model; return the receipt."""
    with ignore_warnings():
        receipt: Receipt = model.forget(people)
    return receipt


def _make_models(seed: int) -> dict[str, Any]:
    network = MLPClassifier((200,), max_iter=PASSES, n_iter_no_change=PASSES, batch_size=25)
    shards: dict[str, Any] = {"n_shards": SHARDS, "epochs": PASSES, "random_state": seed}
    return {
        NAIVE: NaiveUnlearner(network, random_state=seed),
        SHARDED: SISAClassifier(network, **shards),
        SLICED: SISAClassifier(network, n_slices=SLICES, **shards),
    }


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Ignore scikit-learn's warnings about few epochs and small slices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "Got `batch_size`")
        yield


def measure_seconds(work: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
