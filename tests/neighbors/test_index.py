"""The vector index: contract, sequences against fresh builds, queries, files and bytes."""

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from sklearn.utils import estimator_checks

import letheon
from letheon import state
from letheon.checks import parametrize_with_checks
from letheon.exceptions import (
    EmptyModelError,
    IdsTypeError,
    InvalidParameterError,
    StateError,
    UnknownIdError,
)
from letheon.neighbors import VectorIndex
from letheon.neighbors._model import METRICS, IndexSettings

MODELS = [
    VectorIndex(),
    VectorIndex(metric="euclidean"),
    VectorIndex(metric="inner_product", dtype="int16", step=0.01),
]


@estimator_checks.parametrize_with_checks(MODELS)
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@parametrize_with_checks(MODELS)
def test_forgetting_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


RNG = np.random.default_rng(0)
N = 600
X = RNG.normal(size=(N, 12)).astype(np.float32)
IDS = ["p5", "p5", *(f"p{i}" for i in RNG.integers(10, N // 2, N - 2))]


def make(**parameters: Any) -> VectorIndex:
    return VectorIndex(**{"random_state": 3, **parameters})


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("forget"), st.lists(st.integers(0, 39), max_size=4)),
        st.tuples(st.just("add"), st.lists(st.integers(0, 39), min_size=1, max_size=5)),
    ),
    min_size=1,
    max_size=6,
)
SETTINGS = st.fixed_dictionaries(
    {
        "metric": st.sampled_from(["cosine", "euclidean", "inner_product"]),
        "dtype": st.sampled_from(["int8", "int16"]),
        "step": st.sampled_from([None, 0.25]),
        "random_state": st.integers(0, 50),
    }
)


@given(SETTINGS, st.lists(st.integers(0, 39), min_size=3, max_size=60), STEPS, st.booleans())
@settings(max_examples=300)
def test_any_sequence_ends_at_a_fresh_index(
    parameters: dict[str, Any], people: list[int], steps: Any, is_text: bool
) -> None:
    def name(person: int) -> Any:
        return f"person {person}" if is_text else person

    # Few values, so that there are ties; rarely a large one, so that the step changes.
    rng = np.random.default_rng(len(people))
    held = [(p, rng.integers(-2, 3, 3) * (100.0 if p == 7 else 1.0)) for p in people]
    index = VectorIndex(**parameters)
    index.fit([row for _, row in held], ids=[name(p) for p, _ in held])
    for what, which in steps:
        if what == "add":
            new = [(p, rng.integers(-2, 3, 3).astype(float)) for p in which]
            index.add([row for _, row in new], ids=[name(p) for p, _ in new])
            held += new
        else:
            gone = {p for p, _ in held} & set(which)
            if gone and gone != {p for p, _ in held}:
                index.forget([name(p) for p in gone])
                held = [(p, row) for p, row in held if p not in gone]
    rng.shuffle(order := sorted({p for p, _ in held}))  # ids in any order, rows of each in order
    held = [item for p in order for item in held if item[0] == p]
    fresh = VectorIndex(**parameters)
    fresh.fit([row for _, row in held], ids=[name(p) for p, _ in held])
    assert fresh.digest() == index.digest()
    assert state.encode(fresh.index_) == state.encode(index.index_)


def test_a_changed_step_puts_all_rows_on_another_grid() -> None:
    rows = X.copy()
    rows[0] *= 1e6
    for metric in ("euclidean", "inner_product"):
        index = make(metric=metric).fit(rows, ids=range(N))
        before = index.index_.step
        index.forget([0])
        assert index.index_.step < before
        assert index.digest() == make(metric=metric).fit(X[1:], ids=range(1, N)).digest()
        index.add(rows[:1], ids=[0])
        assert index.digest() == make(metric=metric).fit(rows, ids=range(N)).digest()


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
def test_a_scan_of_all_cells_finds_the_nearest_rows(metric: str) -> None:
    index = make(metric=metric, dtype="int16").fit(X, ids=range(N))
    queries = X[:20] + 0.1
    answers = index.query(queries, k=5, n_probe=index.n_cells_)
    if metric == "euclidean":
        exact = np.linalg.norm(queries[:, None] - X[None], axis=2)
    else:
        products = queries @ X.T
        lengths = np.outer(np.linalg.norm(queries, axis=1), np.linalg.norm(X, axis=1))
        exact = 1 - products / lengths if metric == "cosine" else -products
    nearest = np.take_along_axis(exact, answers.ids.astype(int), axis=1)
    scale = np.abs(nearest).max()
    np.testing.assert_allclose(answers.distances, nearest, atol=0.02 * scale)
    np.testing.assert_allclose(nearest, np.sort(exact, axis=1)[:, :5], atol=0.02 * scale)
    assert answers.n_scanned == 20 * (N + index.n_cells_)


def test_a_query_does_not_depend_on_threads_or_on_the_batch() -> None:
    index, threaded = (make(n_jobs=n).fit(X, ids=IDS) for n in (1, 4))
    answers = index.query(X[:50], k=4, n_probe=3)
    assert threaded.digest() == index.digest()
    for part, other in zip(answers[:3], threaded.query(X[:50], k=4, n_probe=3)[:3], strict=True):
        np.testing.assert_array_equal(part, other)
    one = index.query(X[7:8], k=4, n_probe=3)
    np.testing.assert_array_equal(one.ids[0], answers.ids[7])


def test_a_mask_chooses_the_rows_that_may_be_returned() -> None:
    index = make().fit(X, ids=IDS)
    wanted = index.row_ids_ == "p5"
    answers = index.query(X[:3], k=4, n_probe=1, where=wanted)
    n = int(wanted.sum())
    assert n < 4
    assert set(answers.ids[:, :n].ravel()) == {"p5"}
    assert (answers.numbers[:, n:] == -1).all()
    assert np.isinf(answers.distances[:, n:]).all()


def test_numbers_count_the_rows_of_an_id_in_the_order_of_their_arrival() -> None:
    index = make(metric="euclidean", step=0.5).fit([[0.0], [9.0]], ids=["a", "b"])
    index.add([[20.0], [30.0]], ids=["a", "a"])
    answers = index.query([[30.0], [20.0], [0.0]], k=1, n_probe=9)
    assert answers.numbers[:, 0].tolist() == [2, 1, 0]


def test_recall_compares_with_a_scan_of_all_cells() -> None:
    index = make().fit(X, ids=IDS)
    assert index.recall(5, n_probe=index.n_cells_) == 1.0
    shares = [index.recall(5, n_probe=n, X=X[:100]) for n in (1, 8, 64)]
    assert shares == sorted(shares)
    assert 0.1 < shares[0] < 0.9 < shares[2]
    assert index.recall(5, n_probe=8, n_queries=50) > 0.2


def test_a_request_that_touches_no_pivot_moves_no_row() -> None:
    index = make().fit(X, ids=range(N))
    receipts = [index.forget([i]) for i in range(60)]
    work = [receipt.rebuilt["pivots"] for receipt in receipts]
    assert 0 in work
    assert all(r.rebuilt["moved_rows"] == 0 for r, n in zip(receipts, work, strict=True) if n == 0)
    rest = make().fit(X[60:], ids=range(60, N))
    assert rest.digest() == index.digest()


def test_copies_pickles_and_files_are_the_same_index(tmp_path: Path) -> None:
    for metric in METRICS:
        index = make(metric=metric).fit(X, ids=IDS)
        letheon.save(index, tmp_path / "index")
        copies = [copy.deepcopy(index), pickle.loads(pickle.dumps(index))]
        for other in [*copies, letheon.load(tmp_path / "index")]:
            other.forget(["p5"])
            assert other.digest() != index.digest()
            other.add(X[np.array(IDS) == "p5"], ids=["p5"] * IDS.count("p5"))
            assert other.digest() == index.digest()


def test_a_mapped_file_has_the_bytes_of_the_remaining_rows_only(tmp_path: Path) -> None:
    rows, folder = X.copy(), tmp_path / "cells"
    folder.mkdir()
    rows[7] = np.tile([0.5, 0.75, 0.25, 1.0], 3)
    parameters: dict[str, Any] = {"metric": "inner_product", "step": 1 / 64}
    index = make(**parameters, checkpoint_dir=folder).fit(rows, ids=range(N))
    (path,) = folder.iterdir()
    pattern = (np.array([32, 48, 16, 64]) + 128).astype(np.uint8).tobytes()
    assert path.read_bytes().count(pattern) == 3
    assert path.stat().st_mode & 0o77 == 0
    assert make(**parameters).fit(rows, ids=range(N)).digest() == index.digest()
    index.forget([7])
    assert path.read_bytes().count(pattern) == 0
    index.add(rows[7:8], ids=[7])
    assert path.read_bytes().count(pattern) == 3
    assert load_file(path)["cells"].dtype == np.uint8
    index.fit(rows, ids=range(N))
    assert len(list(folder.iterdir())) == 1
    del index
    gc.collect()
    assert list(folder.iterdir()) == []


def test_a_changed_step_renews_the_mapped_file(tmp_path: Path) -> None:
    rows = X.copy()
    rows[0] *= 1e6
    index = make(metric="euclidean", checkpoint_dir=tmp_path).fit(rows, ids=range(N))
    index.forget([0])
    gc.collect()
    assert len(list(tmp_path.iterdir())) == 1
    assert index.digest() == make(metric="euclidean").fit(X[1:], ids=range(1, N)).digest()


def test_queries_run_while_rows_leave() -> None:
    index = make().fit(X, ids=range(N))
    done, failures = threading.Event(), []

    def ask() -> None:
        while not done.is_set():
            answers = index.query(X[:20], k=3, n_probe=4)
            if (answers.numbers < 0).any() or not np.isfinite(answers.distances).all():
                failures.append(answers)

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    for i in range(0, 300, 2):
        index.forget([i])
    done.set()
    for reader in readers:
        reader.join()
    assert not failures


def test_bad_input_changes_nothing() -> None:
    index = make().fit(X, ids=IDS)
    digest = index.digest()
    for error, call in (
        (UnknownIdError, lambda: index.forget(["nobody"])),
        (UnknownIdError, lambda: index.forget([1])),
        (EmptyModelError, lambda: index.forget(sorted(set(IDS)))),
        (IdsTypeError, lambda: index.add(X[:2], ids=[1, 2])),
        (IdsTypeError, lambda: index.add(X[:2], ids=None)),
        (ValueError, lambda: index.add(X[:2, :3], ids=["a", "b"])),
        (ValueError, lambda: index.add(X[:2] * np.nan, ids=["a", "b"])),
        (InvalidParameterError, lambda: index.query(X[:1], k=0)),
        (InvalidParameterError, lambda: index.query(X[:1], n_probe=0)),
        (InvalidParameterError, lambda: index.query(X[:1], where=[True])),
        (InvalidParameterError, lambda: index.recall(0)),
    ):
        with pytest.raises(error):
            call()
    assert index.digest() == digest
    for wrong in (
        {"metric": "l3"},
        {"dtype": "int4"},
        {"step": 0.0},
        {"checkpoint_dir": "/no/folder"},
    ):
        with pytest.raises(InvalidParameterError):
            make(**wrong).fit(X)


def damage(**changes: Any) -> dict[str, Any]:
    index = make(metric="euclidean", step=0.25).fit(X[:100], ids=range(100))
    return index.index_._to_state() | changes


def test_damaged_states_are_refused() -> None:
    fields = damage()
    ids, cells, settings_ = fields["ids"], fields["cells"], fields["settings"]
    other_cells = cells.copy()
    other_cells[3] ^= 1
    swapped = fields["X"].copy()
    swapped[[1, 2]] = swapped[[2, 1]]
    index = type(make().fit(X[:9]).index_)
    assert index._from_state(fields).core.n_rows == 100
    broken: list[dict[str, Any]] = [
        {"cells": other_cells},
        {"cells": cells[:-1]},
        {"X": fields["X"].astype(np.int16)},
        {"X": fields["X"][:, :5]},
        {"X": np.full_like(fields["X"], -128)},
        {"ids": ids.take(np.arange(99))},
        {"ids": ids.take(np.arange(99, -1, -1))},
        {"target": np.zeros(100)[:50]},
        {"classes": np.array([0, 1])},
        {"settings": None},
        *({"settings": replace(settings_, **change)} for change in SETTINGS_CHANGES),
    ]
    for changes in broken:
        with pytest.raises((ValueError, TypeError)):
            index._from_state(fields | changes)


SETTINGS_CHANGES: list[dict[str, Any]] = [
    {"metric": "other"},
    {"dtype": "float32"},
    {"step": -1.0},
    {"step": float("inf")},
    {"n_columns": 0},
    {"n_columns": 13},
    {"seed": -1},
    {"seed": 4},
]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    letheon.save(make().fit(X, ids=IDS), path)
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(40):
        position = int(rng.integers(len(content)))
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 5]) + content[position + 1 :]
        )
        with pytest.raises((StateError, ValueError)):
            letheon.load(path)


def test_the_number_of_cells_is_a_power_of_two_near_four_roots() -> None:
    for n in (16, 100, 1000, 60_000, 10**6):
        counts = {
            IndexSettings("cosine", "int8", None, 3, seed).count_pivots(n) for seed in range(200)
        }
        assert all(count & (count - 1) == 0 or count == n for count in counts)
        assert min(counts) >= min(n, 2 * n**0.5)
        assert max(counts) <= 8 * n**0.5
    seeds = 4000
    changes = sum(
        IndexSettings("cosine", "int8", None, 3, seed).count_pivots(1000)
        != IndexSettings("cosine", "int8", None, 3, seed).count_pivots(900)
        for seed in range(seeds)
    )
    assert abs(changes / seeds - np.log2(1000 / 900) / 2) < 0.02
