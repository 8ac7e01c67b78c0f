"""The test of the exactness tests: bugs planted in SISA must show as a different digest."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import GaussianNB

from letheon import SISAClassifier
from letheon.data import Rows
from letheon.inner_estimator import SeedSlots
from letheon.sharded import _base, _shards
from letheon.sharded._shards import Assignment
from tests.sharded.people import make_people

pytestmark = pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")


def start_one_slice_late(patch: pytest.MonkeyPatch) -> None:
    real = _shards.change_rows

    def late(old: Any, rows: Any, touched: Any, recipe: Any) -> Any:
        change = real(old, rows, touched, recipe)
        first = min(change.job.first + 1, recipe.n_slices - 1)
        return change._replace(job=replace(change.job, first=first))

    patch.setattr(_base, "change_rows", late)


def ignore_a_lost_class(patch: pytest.MonkeyPatch) -> None:
    def careless(old: Any, rows: Any, touched: Any, recipe: Any) -> Any:
        return _shards.ShardChange(old, _shards.ShardTraining(old.number, rows, int(touched.min())))

    patch.setattr(_base, "change_rows", careless)


def keep_a_stale_state(patch: pytest.MonkeyPatch) -> None:
    real = _base.SISABase._train

    def stale(self: Any, shards: Any, changes: Any, *settings: Any) -> Any:
        replacement = real(self, shards, changes, *settings)
        for change in changes:
            if change.old is not None:
                shard = replacement.ensemble.shards[change.job.number]
                object.__setattr__(shard, "states", change.old.states)
        return replacement

    patch.setattr(_base.SISABase, "_train", stale)


def retrain_on_the_old_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rows, "without", lambda self, positions: self)


def seed_by_a_generator(patch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)

    def consume(self: SeedSlots, *about: Any) -> None:
        for _, owner in self._slots:
            owner.random_state = int(rng.integers(2**31))

    patch.setattr(SeedSlots, "fill", consume)


def assign_by_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Assignment, "slices", lambda self, ids, tiers: np.arange(len(ids)) % self.n_slices
    )


def forget_the_first_row_only(patch: pytest.MonkeyPatch) -> None:
    real = Rows.without
    patch.setattr(Rows, "without", lambda self, positions: real(self, positions[:1]))


BUGS = [
    start_one_slice_late,
    ignore_a_lost_class,
    keep_a_stale_state,
    retrain_on_the_old_rows,
    seed_by_a_generator,
    assign_by_position,
    forget_the_first_row_only,
]


def all_exact(model: SISAClassifier) -> bool:
    for seed in range(12):
        people = make_people(8, seed=seed)
        forgetful = model.set_params(random_state=seed).fit(*people[:2], ids=people.ids)
        for person in range(3):
            forgetful.forget([person])
        digest, rest = forgetful.digest(), people.without(range(3))
        if digest != model.fit(*rest[:2], ids=rest.ids).digest():
            return False
    return True


def sliced() -> SISAClassifier:
    return SISAClassifier(SGDClassifier(), n_shards=2, n_slices=3, epochs=3)


@pytest.mark.parametrize("plant", BUGS)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not all_exact(sliced())


def test_without_a_bug_nothing_is_found() -> None:
    assert all_exact(sliced())
    assert all_exact(SISAClassifier(GaussianNB(), n_slices=3, stage_data="new"))
