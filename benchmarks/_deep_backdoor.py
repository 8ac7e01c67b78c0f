"""Backdoors as in He et al.: whether a planted pattern still works after its owner is removed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks._deep_models import (
    SEED,
    Backdoor,
    Yardstick,
    copy_model,
    make_naive,
    percent,
    plant_backdoor,
    score_accuracy,
    time_on_device,
    times,
)
from benchmarks._deep_obliviate import Rule
from benchmarks._report import Table
from letheon.data import row_ids
from letheon.deep._obliviate import assign_blocks
from letheon.measures import certifiability_from_predictions
from letheon.seeds import seed_from

__all__ = ["Case", "Planted", "choose_owners", "make_backdoor_table", "measure_backdoors"]

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


def choose_owners(case: Case, n_rows: int, n_blocks: int) -> list[int]:
    """Return new ids for the owners; a single owner is in the block at `place`."""
    ids = np.arange(n_rows, n_rows + 100 * n_blocks)
    if case.place is None:
        return list(map(int, ids[: case.n_owners]))
    block = int(case.place * n_blocks)
    blocks = assign_blocks(row_ids(ids, len(ids)), seed_from(SEED), n_blocks)
    return list(map(int, ids[blocks == block][: case.n_owners]))


def measure_backdoors(
    yardstick: Yardstick,
    case: Case,
    models: dict[str, Callable[[], Any]],
    rules: Mapping[str, Sequence[Rule]],
    n_blocks: int,
) -> list[Planted]:
    """Plant the pattern, train every method, remove the owners, and test the pattern."""
    data, device = yardstick.data, yardstick.device
    backdoor = plant_backdoor(data, case.n_rows, choose_owners(case, len(data.y), n_blocks))
    rest = np.delete(np.arange(len(data.y)), backdoor.rows)
    reference = make_naive(yardstick.recipe, device).fit(data.X[rest], data.y[rest], ids=rest)
    attacks = []
    for name, make in models.items():
        model = make().fit(backdoor.data.X, backdoor.data.y, ids=backdoor.ids)
        for title, each in _list_variants(name, model, rules.get(name, ())):
            attacks.append(
                _measure_backdoor(yardstick, case, backdoor, (title, model, each), reference)
            )
    return attacks


def _list_variants(name: str, model: Any, rules: Sequence[Rule]) -> list[tuple[str, Any]]:
    """Return a copy for each rule, or one copy if there is no rule."""
    if not rules:
        return [(name, copy_model(model))]
    return [(f"{name} {rule}", copy_model(model, **rule._asdict())) for rule in rules]


def _measure_backdoor(
    yardstick: Yardstick,
    case: Case,
    backdoor: Backdoor,
    method: tuple[str, Any, Any],
    reference: Any,
) -> Planted:
    title, before, model = method
    if yardstick.device == "cuda" and hasattr(model, "vault_"):
        model.forget([_find_bystander(model, backdoor)])  # a copy has no captured CUDA graphs
    receipt, seconds = time_on_device(lambda: model.forget(backdoor.owners), yardstick.device)
    answers = [each.predict(backdoor.X_test) for each in (before, reference, model)]
    sape = certifiability_from_predictions(_compute_share, backdoor.targets, answers[2], answers[1])
    shares = [100 * _compute_share(backdoor.targets, each) for each in answers]
    rights = [score_accuracy(each, yardstick.data) for each in (before, reference, model)]
    ratio = yardstick.seconds.wall / seconds.wall
    return Planted(case, title, shares, rights, sape, receipt.work, seconds.wall, ratio)


def _find_bystander(model: Any, backdoor: Backdoor) -> int:
    """Return a person without backdoored rows, in the last block if there are blocks."""
    block = model.rows_.extra.get("block", np.zeros(len(backdoor.ids)))
    innocent = ~np.isin(backdoor.ids, backdoor.owners)
    return int(backdoor.ids[innocent & (block == block.max())][0])


def _compute_share(truth: Any, answers: Any) -> float:
    return float(np.mean(truth == answers))


def make_backdoor_table(
    attacks: list[Planted], yardstick: Yardstick, n_blocks: int, note: str
) -> Table:
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
