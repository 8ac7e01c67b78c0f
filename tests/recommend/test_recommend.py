"""Recommenders forget exactly and compute what plain loops compute."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import letheon
from letheon.exceptions import UnknownIdError
from letheon.recommend import EASE, CoCounts, ItemKNN
from letheon.seeds import Purpose, keyed_hash, mix64
from tests.recommend import reference

N_ITEMS = 9
SIMILARITIES = ("cosine", "jaccard", "lift")


def draw_table(seed: int, n_rows: int = 14, share: float = 0.4) -> Any:
    return (np.random.default_rng(seed).random((n_rows, N_ITEMS)) < share).astype(float)


def make_models(max_items: int | None) -> list[Any]:
    return [
        ItemKNN(similarity="lift", n_neighbors=3, max_items=max_items, random_state=5),
        EASE(l2=0.7, max_items=max_items, random_state=5),
    ]


def fit_rows(model: Any, rows: list[tuple[int, Any]]) -> Any:
    X = np.array([row for _, row in rows])
    return letheon_clone(model).fit(sp.csr_array(X), ids=[owner for owner, _ in rows])


def letheon_clone(model: Any) -> Any:
    return type(model)(**model.get_params())


steps = st.lists(
    st.tuples(st.sampled_from(["forget", "learn"]), st.integers(0, 5), st.integers(0, 10**6)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=50)
@given(start=st.integers(0, 10**6), steps=steps, max_items=st.sampled_from([None, 1, 3]))
def test_a_life_ends_at_the_digest_of_a_fresh_fit(
    start: int, steps: list[tuple[str, int, int]], max_items: int | None
) -> None:
    for model in make_models(max_items):
        table = draw_table(start)
        rows = [(place % 6, row) for place, row in enumerate(table)]
        model.fit(sp.csr_array(table), ids=[owner for owner, _ in rows])
        for action, owner, seed in steps:
            if action == "learn":
                more = draw_table(seed, 2, share=0.6)
                model.learn(more, ids=[owner, owner + 1])
                rows += [(owner, more[0]), (owner + 1, more[1])]
            elif any(one == owner for one, _ in rows) and any(one != owner for one, _ in rows):
                model.forget([owner])
                rows = [row for row in rows if row[0] != owner]
        fresh = fit_rows(model, rows)
        assert model.digest() == fresh.digest()
        assert model.transform(table).tobytes() == fresh.transform(table).tobytes()


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("seed", range(4))
def test_recommendations_are_those_of_plain_loops(name: str, seed: int) -> None:
    X, queries = draw_table(seed), draw_table(seed + 100, 5)
    model = ItemKNN(similarity=name, n_neighbors=4, random_state=0).fit(X)
    histories = reference.read_histories(X)
    items, scores = model.recommend(queries, k=3)
    for row, query in enumerate(reference.read_histories(queries)):
        expected = reference.recommend(histories, name, query, N_ITEMS, 4, 3)
        assert items[row][: len(expected)].tolist() == [item for item, _ in expected]
        assert scores[row][: len(expected)] == pytest.approx([score for _, score in expected])
        assert (items[row][len(expected) :] == -1).all()
    for item in range(N_ITEMS):
        nearest = reference.list_neighbors(histories, name, item, N_ITEMS, 2)
        similar = model.similar_items([item], k=2)
        assert [each for each in similar.items[0].tolist() if each >= 0] == list(nearest)
        assert similar.scores[0][: len(nearest)] == pytest.approx(list(nearest.values()))


@pytest.mark.parametrize("l2", [0.5, 20.0])
def test_ease_is_the_ridge_regression_of_each_item_on_the_others(l2: float) -> None:
    X = draw_table(3, 30)
    model = EASE(l2=l2, random_state=0).fit(X)
    expected = reference.solve_ridge(reference.read_histories(X), N_ITEMS, l2)
    assert model.weights_ == pytest.approx(expected, abs=1e-10)
    scores = X @ expected
    scores[X > 0] = -np.inf
    ranked = np.argsort(-scores, axis=1, kind="stable")[:, 0]
    assert model.recommend(X, k=1).items[:, 0].tolist() == ranked.tolist()


def test_long_histories_are_cut_by_the_hash_of_person_and_item() -> None:
    X = np.ones((2, N_ITEMS))
    model = ItemKNN(max_items=4, random_state=7).fit(X, ids=["anna", "ben"])
    expected = np.zeros(N_ITEMS, np.int64)
    for person in ("anna", "ben"):
        key = keyed_hash(7, Purpose.HISTORY, person)
        draws = mix64(key, np.arange(N_ITEMS, dtype=np.uint64))
        expected[np.argsort(draws)[:4]] += 1
    assert model.sums_.totals.tolist() == expected.tolist()
    assert expected.sum() == 8


def test_the_pairs_of_a_removed_person_are_not_stored() -> None:
    X = np.zeros((3, N_ITEMS))
    X[0, [0, 1]], X[1, [1, 2, 7]], X[2, [0, 1]] = 1, 1, 1
    model = ItemKNN(random_state=0).fit(X, ids=["anna", "ben", "carla"])
    lists = model.sums_.partners[1], model.sums_.counts[1]
    model.forget(["ben"])
    assert [part.tolist() for part in model.sums_.partners[:3]] == [[1], [0], []]
    assert model.sums_.partners[7].tolist() == []
    assert not any(part.any() for part in lists)  # the old lists are overwritten


def test_recommendations_to_people_use_all_of_their_histories() -> None:
    X = draw_table(8, 12)
    ids = [f"p{place % 5}" for place in range(12)]
    model = ItemKNN(random_state=0).fit(X, ids=ids)
    model.forget(["p1"])
    joint = [np.max([X[k] for k in range(12) if ids[k] == name], axis=0) for name in ("p3", "p0")]
    assert model.recommend_to(["p3", "p0"], k=4).items.tolist() == (
        model.recommend(np.array(joint), k=4).items.tolist()
    )
    with pytest.raises(UnknownIdError, match="'p1'"):
        model.recommend_to(["p0", "p1"])


def test_a_large_request_changes_many_counts_at_once() -> None:
    table = (np.random.default_rng(0).random((400, 40)) < 0.1).astype(float)
    model = ItemKNN(random_state=0).fit(table)
    model.forget(list(range(0, 400, 2)))
    fresh = ItemKNN(random_state=0).fit(table[1::2], ids=list(range(1, 400, 2)))
    assert model.digest() == fresh.digest()


def test_seen_items_may_be_recommended_again() -> None:
    X = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 1]])
    model = ItemKNN(random_state=0).fit(X)
    items = model.recommend([[1, 1, 0]], k=3, exclude_seen=False).items[0].tolist()
    assert set(items) == {0, 1, 2}
    assert model.recommend([[1, 1, 0]], k=3).items[0].tolist() == [2, -1, -1]


def test_the_input_is_not_changed_and_values_above_zero_count_as_one() -> None:
    X = sp.csr_array(np.array([[3.0, 0.5], [0.0, 2.0]], np.float32))
    X.data[1] = 0.0  # a stored zero is no interaction
    before = X.data.copy()
    model = ItemKNN(random_state=0).fit(X)
    model.recommend(X)
    assert X.data.tolist() == before.tolist()
    assert model.sums_.totals.tolist() == [1, 1]
    assert model.sums_.partners[0].tolist() == []


@pytest.mark.parametrize("model", make_models(3))
def test_files_pickles_and_copies(model: Any, tmp_path: Path) -> None:
    model.fit(draw_table(1))
    letheon.save(model, tmp_path / "m.letheon")
    loaded = letheon.load(tmp_path / "m.letheon")
    loaded.forget([2])
    twin = copy.copy(model)
    twin.forget([2])
    assert loaded.digest() == twin.digest() != model.digest()
    assert pickle.loads(pickle.dumps(model)).digest() == model.digest()
    assert "seed" not in repr(model.guarantee_.residual_state)


def change_state(**values: Any) -> dict[str, Any]:
    state = CoCounts.count(sp.csr_array(np.array([[1, 1, 0], [1, 1, 1]])))._to_state()
    return state | {name: np.array(value, state[name].dtype) for name, value in values.items()}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lengths": [2, 2]}, "another length"),
        ({"lengths": [3, 2, 2]}, "another length"),
        ({"lengths": [-2, 6, 2]}, "another length"),
        ({"lengths": [6, 0, 0]}, "another length"),
        ({"counts": [2, 1, 2, 1, 1]}, "another length"),
        ({"partners": [1, 3, 0, 2, 0, 1]}, "does not exist"),
        ({"partners": [-1, 2, 0, 2, 0, 1]}, "does not exist"),
        ({"partners": [2, 1, 0, 2, 0, 1]}, "not sorted"),
        ({"partners": [0, 2, 0, 2, 0, 1]}, "as its partner"),
        ({"partners": [1, 1, 0, 2, 0, 1]}, "not sorted"),
        ({"counts": [3, 1, 2, 1, 1, 1]}, "between 1"),
        ({"counts": [0, 1, 2, 1, 1, 1]}, "between 1"),
        ({"totals": [-1, 2, 1]}, "between 1"),
        ({"totals": [[2, 2, 1]]}, "one-dimensional"),
    ],
)
def test_forged_counts_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CoCounts._from_state(change_state(**values))


def test_counts_of_other_types_are_refused() -> None:
    state = change_state() | {"totals": np.array([2.0, 2.0, 1.0])}
    with pytest.raises(ValueError, match="dtypes"):
        CoCounts._from_state(state)


def test_honest_counts_are_read_back() -> None:
    counts = CoCounts._from_state(change_state())
    assert counts.to_matrix().tolist() == [[2, 2, 1], [2, 2, 1], [1, 1, 1]]


@pytest.mark.parametrize("similarity", ["euclidean", None, 3])
def test_unknown_similarities_are_refused(similarity: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="similarity"):
        ItemKNN(similarity=similarity).fit(draw_table(0))


def test_bad_input_gets_a_clear_error_and_changes_nothing() -> None:
    model = ItemKNN(random_state=0).fit(draw_table(0))
    before = model.digest()
    with pytest.raises(ValueError, match="Negative values"):
        model.learn(-draw_table(1), ids=list(range(14)))
    with pytest.raises(ValueError, match="X has 8 features"):
        model.learn(draw_table(1)[:, 1:], ids=list(range(14)))
    with pytest.raises(ValueError, match="k=0"):
        model.recommend(draw_table(1), k=0)
    with pytest.raises(ValueError, match="item 9 does not exist"):
        model.similar_items([1, 9])
    with pytest.raises(ValueError, match=r"items=\[0.5\]; expected a list of column numbers"):
        model.similar_items([0.5])
    with pytest.raises(ValueError, match=r"NaN or infinity.*fillna"):
        model.learn(draw_table(1) * np.nan, ids=list(range(14)))
    with pytest.raises(UnknownIdError):
        model.forget([99])
    assert model.digest() == before


def test_too_many_items_for_a_dense_matrix_are_refused() -> None:
    wide = sp.csr_array(([1.0], ([0], [60_000])), shape=(2, 60_001))
    with pytest.raises(ValueError, match=r"60,001 items.*ItemKNN"):
        EASE().fit(wide)
    assert ItemKNN(random_state=0).fit(wide).recommend(wide, k=1).items.tolist() == [[-1], [-1]]


def test_a_frame_gives_recommendations_without_warnings() -> None:
    frame = pd.DataFrame(draw_table(0), columns=[f"film {item}" for item in range(N_ITEMS)])
    model = ItemKNN(random_state=0).fit(frame, ids=frame.index)
    expected = model.recommend(frame.iloc[[3]], k=2)
    np.testing.assert_array_equal(model.recommend_to([3], k=2).items, expected.items)
