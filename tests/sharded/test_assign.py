"""Shards and slices are a function of one person's id and risk only."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier

from letheon import SISAClassifier
from letheon.data import as_ids
from letheon.seeds import Purpose, keyed_hash
from letheon.sharded._shards import Assignment, check_risk_edges, risk_tiers
from tests.sharded.people import examples, make_people


def zeros(n: int) -> Any:
    return np.zeros(n, np.int64)


@examples(50)
@given(st.lists(st.text(), unique=True), st.integers(0, 2**128 - 1), st.integers(1, 50))
def test_shard_is_the_keyed_hash_of_the_id(ids: list[str], seed: int, n_shards: int) -> None:
    rule = Assignment(seed, n_shards, 7, 1)
    expected = [keyed_hash(seed, Purpose.SHARD, name) % n_shards for name in ids]
    assert rule.shards(as_ids(ids), zeros(len(ids))).tolist() == expected
    late = [keyed_hash(seed, Purpose.SLICE, name) % 7 for name in ids]
    assert rule.slices(as_ids(ids), zeros(len(ids))).tolist() == late


def test_shards_and_slices_are_uniform_and_independent() -> None:
    ids = as_ids(np.arange(40_000))
    rule = Assignment(3, 8, 5, 1)
    cells = rule.shards(ids, zeros(40_000)) * 5 + rule.slices(ids, zeros(40_000))
    assert chisquare(np.bincount(cells, minlength=40)).pvalue > 1e-3


def test_riskier_people_share_few_shards_and_late_slices() -> None:
    ids = as_ids(np.arange(3_000))
    rule = Assignment(1, 8, 9, 3)
    seen = []
    for tier in range(3):
        tiers = np.full(3_000, tier)
        shards, slices = rule.shards(ids, tiers), rule.slices(ids, tiers)
        seen.append((len(set(shards)), min(slices), max(slices)))
    assert seen == [(8, 0, 2), (4, 3, 5), (2, 6, 8)]


@examples(50)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32))
def test_every_tier_stays_inside_the_shards_and_slices(
    n_shards: int, n_slices: int, n_tiers: int, seed: int
) -> None:
    ids, rule = as_ids(np.arange(50)), Assignment(seed, n_shards, n_slices, n_tiers)
    for tier in range(n_tiers):
        tiers = np.full(50, tier)
        shards, slices = rule.shards(ids, tiers), rule.slices(ids, tiers)
        assert 0 <= shards.min() <= shards.max() < n_shards
        assert 0 <= slices.min() <= slices.max() < n_slices


def test_a_persons_rows_are_in_one_shard_and_adding_people_moves_no_row() -> None:
    people = make_people(30)
    model = SISAClassifier(DecisionTreeClassifier(), random_state=0).fit(
        *people[:2], ids=people.ids
    )
    before = {n: s.number for s in model.ensemble_.shards for n in s.rows.ids.to_list()}
    model.learn(people.X[:2], people.y[:2], ids=[1000, 1001])
    after = {n: s.number for s in model.ensemble_.shards for n in s.rows.ids.to_list()}
    assert len(before) == 30
    assert before.items() <= after.items()


RISK = {person: person / 20 for person in range(20)}


def risky(**settings: Any) -> SISAClassifier:
    return SISAClassifier(
        GaussianNB(),
        n_slices=4,
        stage_data="new",
        risk_edges=[0.5, 0.9],
        random_state=1,
        **settings,
    )


def test_risk_keeps_forgetting_exact() -> None:
    people = make_people(20)
    model = risky().fit(*people[:2], ids=people.ids, risk=RISK)
    model.forget([19, 3])
    model.forget([11])
    rest = people.without([19, 3, 11])
    risk = np.array([RISK[person] for person in rest.ids.tolist()])
    assert model.digest() == risky().fit(*rest[:2], ids=rest.ids, risk=risk).digest()


def test_risky_people_are_cheaper_to_forget() -> None:
    people = make_people(400)
    risk = (people.ids >= 360) * 1.0
    model = SISAClassifier(
        GaussianNB(), n_slices=4, stage_data="new", risk_edges=[0.5], random_state=0, n_shards=8
    ).fit(*people[:2], ids=people.ids, risk=risk)

    def mean_work(some: range) -> float:
        plans = [model._prepare(model._locate_rows(as_ids([person]))) for person in some]
        return float(np.mean([plan.outcome.work for plan in plans]))

    assert mean_work(range(360, 400)) < 0.75 * mean_work(range(40))


@examples(40)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32), st.integers(1, 3))
@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
def test_learning_a_known_person_needs_no_risk(
    n_shards: int, n_slices: int, seed: int, n_edges: int
) -> None:
    people = make_people(20, seed=seed % 7)
    late = make_people(20, seed=seed % 7 + 1)
    risk = {person: (person * 7 % 20) / 20 for person in range(20)}
    settings: dict[str, Any] = {"n_shards": n_shards, "n_slices": n_slices, "random_state": seed}
    settings["risk_edges"] = [0.2, 0.5, 0.8][:n_edges]
    model = risky().set_params(**settings).fit(*people[:2], ids=people.ids, risk=risk)
    model.learn(late.X, late.y, ids=late.ids)
    joined = [np.concatenate(parts) for parts in zip(people, late, strict=True)]
    fresh = risky().set_params(**settings).fit(joined[0], joined[1], ids=joined[2], risk=risk)
    assert model.digest() == fresh.digest()
    model.learn(late.X, late.y, ids=late.ids, risk=risk)


def test_learning_may_not_change_a_persons_risk() -> None:
    people = make_people(20)
    model = risky().fit(*people[:2], ids=people.ids, risk=RISK)
    with pytest.raises(ValueError, match="another tier"):
        model.learn(people.X[:1], people.y[:1], ids=[19], risk=[0.0])
    with pytest.raises(ValueError, match="risk is required for new people"):
        model.learn(people.X[:1], people.y[:1], ids=[999])


@pytest.mark.parametrize("edges", [[2.0, 1.0], [1.0, 1.0], [np.nan], [[0.5]], [np.inf]])
def test_bad_edges_are_refused(edges: Any) -> None:
    with pytest.raises(ValueError, match="risk_edges"):
        check_risk_edges(edges)


@pytest.mark.parametrize(
    ("risk", "message"),
    [
        ([0.1, 0.2], "one number per row"),
        ([0.1, 0.2, np.nan], "NaN"),
        ([0.1, 0.2, 0.1], "differs between rows of one person"),
        ({7: 0.1}, "no value for 1 id"),
    ],
)
def test_bad_risk_is_refused(risk: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        risk_tiers(risk, as_ids([7, 7, 8]), np.array([0.5]))


def test_risk_and_edges_come_together() -> None:
    people = make_people(5)
    with pytest.raises(ValueError, match="has no risk_edges"):
        SISAClassifier(GaussianNB()).fit(*people[:2], ids=people.ids, risk=people.ids)
