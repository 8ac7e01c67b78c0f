"""Backdoors as in He et al.: whether a planted pattern still works after its owner is removed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks._deep_models import (
    SEED,
    Backdoor,
    Yardstick,
    accuracy,
    clocked,
    naive,
    percent,
    plant,
    times,
    twin,
)
from benchmarks._deep_obliviate import Rule
from benchmarks._report import Table
from letheon.data import row_ids
from letheon.deep._obliviate import assign_blocks
from letheon.measures import certifiability_from_predictions
from letheon.seeds import seed_from

__all__ = ["Case", "Planted", "backdoor_table", "owners_in", "planted"]

COLUMNS = (
    "rows", "owners", "method", "backdoor: before", "backdoor: naive", "backdoor: after",
    "SAPE", "accuracy: before", "accuracy: naive", "accuracy: after", "share of work", "again ms",
    "x naive",
)  # fmt: skip
NOTE = (
    "Rows of other classes got a pattern of 4 white pixels and the label 0; they belong to the "
    "owners, who leave in one request. *backdoor*: share of {n:,} test images with the pattern "
    "(none of class 0) that are named 0. *before*: the method's own model; *naive*: the tuned net "
    "retrained without the owners; *after*: the model after the request. *SAPE*: 100 |after - "
    "naive| / (after + naive), 95 % interval in brackets: when both are near 0, a few images make "
    "it large. *x naive*: a naive retrain over it. Blocks of single owners: {blocks}{note}."
)


class Case(NamedTuple):
    """Number of backdoored rows and the block of their owner (None: owners in any block)."""

    n_rows: int
    n_owners: int
    place: float | None = None


class Planted(NamedTuple):
    """One method on one case; shares and accuracies before, after, and of naive retraining."""

    case: Case
    method: str
    shares: list[float]
    accuracies: list[float]
    sape: Any
    work: float
    wall: float
    ratio: float


def owners_in(case: Case, n_rows: int, n_blocks: int) -> list[int]:
    """Return new ids for the owners; a single owner is in the block at `place`."""
    ids = np.arange(n_rows, n_rows + 100 * n_blocks)
    if case.place is None:
        return list(map(int, ids[: case.n_owners]))
    block = int(case.place * n_blocks)
    blocks = assign_blocks(row_ids(ids, len(ids)), seed_from(SEED), n_blocks)
    return list(map(int, ids[blocks == block][: case.n_owners]))


def planted(
    yardstick: Yardstick,
    case: Case,
    models: dict[str, Callable[[], Any]],
    rules: Mapping[str, Sequence[Rule]],
    n_blocks: int,
) -> list[Planted]:
    """Plant the pattern, train every method, remove the owners, and test the pattern."""
    data, device = yardstick.data, yardstick.device
    backdoor = plant(data, case.n_rows, owners_in(case, len(data.y), n_blocks))
    rest = np.delete(np.arange(len(data.y)), backdoor.rows)
    reference = naive(yardstick.recipe, device).fit(data.X[rest], data.y[rest], ids=rest)
    attacks = []
    for name, make in models.items():
        model = make().fit(backdoor.data.X, backdoor.data.y, ids=backdoor.ids)
        for title, each in _variants(name, model, rules.get(name, ())):
            attacks.append(_asked(yardstick, case, backdoor, (title, model, each), reference))
    return attacks


def _variants(name: str, model: Any, rules: Sequence[Rule]) -> list[tuple[str, Any]]:
    """Return a copy for each rule, or one copy if there is no rule."""
    if not rules:
        return [(name, twin(model))]
    return [(f"{name} {rule}", twin(model, **rule._asdict())) for rule in rules]


def _asked(
    yardstick: Yardstick,
    case: Case,
    backdoor: Backdoor,
    method: tuple[str, Any, Any],
    reference: Any,
) -> Planted:
    title, before, model = method
    if yardstick.device == "cuda" and hasattr(model, "vault_"):
        model.forget([_bystander(model, backdoor)])  # a copy has no captured CUDA graphs
    receipt, seconds = clocked(lambda: model.forget(backdoor.owners), yardstick.device)
    answers = [each.predict(backdoor.X_test) for each in (before, reference, model)]
    sape = certifiability_from_predictions(_share, backdoor.targets, answers[2], answers[1])
    shares = [100 * _share(backdoor.targets, each) for each in answers]
    rights = [accuracy(each, yardstick.data) for each in (before, reference, model)]
    ratio = yardstick.seconds.wall / seconds.wall
    return Planted(case, title, shares, rights, sape, receipt.work, seconds.wall, ratio)


def _bystander(model: Any, backdoor: Backdoor) -> int:
    """Return a person without backdoored rows, in the last block if there are blocks."""
    block = model.rows_.extra.get("block", np.zeros(len(backdoor.ids)))
    innocent = ~np.isin(backdoor.ids, backdoor.owners)
    return int(backdoor.ids[innocent & (block == block.max())][0])


def _share(truth: Any, answers: Any) -> float:
    return float(np.mean(truth == answers))


def backdoor_table(attacks: list[Planted], yardstick: Yardstick, n_blocks: int, note: str) -> Table:
    """Return the table of all cases and methods."""
    rows = []
    for each in attacks:
        low, high = each.sape.low, each.sape.high
        interval = "" if low is None else f" [{low:.1f}, {high:.1f}]"
        rows.append(
            (
                f"{each.case.n_rows:,}", each.case.n_owners, each.method,
                *map(percent, each.shares), f"{each.sape.value:.1f} %{interval}",
                *map(percent, each.accuracies), percent(100 * each.work), 1000 * each.wall,
                times(each.ratio),
            )
        )  # fmt: skip
    places = {each.case.place for each in attacks if each.case.place is not None}
    blocks = ", ".join(f"{int(place * n_blocks) + 1} of {n_blocks}" for place in sorted(places))
    n_test = int(np.sum(yardstick.data.y_test != 0))
    text = NOTE.format(n=n_test, blocks=blocks or "none", note=f"; {note}" if note else "")
    return Table(f"Backdoors: {yardstick.data.describe()}", COLUMNS, rows, text)
