"""Made-up tables: shape, balance, people, and equal bytes for equal arguments."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from letheon import datasets
from letheon.datasets import _synthetic

VARIANTS = [
    (name, variant)
    for name in datasets.names()
    for variant in (datasets.info(name).variants or (None,))
]
LARGE = {"imagenet", "mini-imagenet", "lsun"}


def made(name: str, variant: str | None = None, n_rows: int = 400, **options: Any) -> Any:
    n_rows = 8 if name in LARGE else n_rows
    return datasets.load(name, variant=variant, synthetic="always", n_rows=n_rows, **options)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_shape_and_balance_are_the_real_ones(name: str, variant: str | None) -> None:
    data = made(name, variant)
    about = datasets.info(name)
    shape = about.stand_ins[variant or ""]
    width = shape.n_sparse or _synthetic.count_columns(about, shape, "one-hot")
    assert data.X.shape == (8 if name in LARGE else 400, width)
    assert data.X.dtype == np.float32
    assert sparse.issparse(data.X) or data.X.flags.c_contiguous
    assert len(data.feature_names) in (0, width)
    assert not data.real
    assert "synthetic" in data.name
    assert (data.X_test is None) == (shape.n_test == 0)
    has_people = datasets.info(name).subject_id != "none"
    assert (data.ids is not None) == has_people
    assert (data.test_ids is not None) == (has_people and shape.n_test > 0)
    if len(shape.shares) == 2:
        labels = data.y if data.y_test is None else np.concatenate([data.y, data.y_test])
        assert labels.mean() == pytest.approx(shape.shares[1], abs=1.5 / len(labels))


@pytest.mark.parametrize("name", ["adult", "mnist", "rcv1", "diabetes", "purchase"])
def test_equal_arguments_give_equal_bytes(name: str) -> None:
    first, again, other = (made(name, n_rows=50, seed=seed) for seed in (3, 3, 4))
    dense = [each.X.toarray() if name == "rcv1" else each.X for each in (first, again, other)]
    np.testing.assert_array_equal(dense[0], dense[1])
    np.testing.assert_array_equal(first.y, again.y)
    assert not np.array_equal(dense[0], dense[2])


@pytest.mark.parametrize("name", ["diabetes", "no-show", "olympics", "twitter"])
def test_people_own_several_rows_that_resemble_each_other(name: str) -> None:
    data = made(name, n_rows=3000)
    shape = next(iter(datasets.info(name).stand_ins.values()))
    assert len(data.y) / len(data.people) == pytest.approx(shape.rows_per_person, rel=0.1)
    # Within a person the variance of a number is 1, over all people it is 2.
    numbers = data.X[:, : shape.n_numbers]
    _, owner, n_owned = np.unique(data.ids, return_inverse=True, return_counts=True)
    sums = np.zeros((len(n_owned), shape.n_numbers))
    np.add.at(sums, owner, numbers)
    within = ((numbers - (sums / n_owned[:, None])[owner]) ** 2).sum(0) / (n_owned - 1).sum()
    assert within.mean() == pytest.approx(1, abs=0.15)
    assert numbers.var(axis=0).mean() == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("name", ["vaccine", "purchase"])
def test_people_with_one_row_have_ids_as_in_the_files(name: str) -> None:
    data = made(name, n_rows=60)
    assert data.ids.tolist() == list(range(60))
    parts = data.split(0.25, seed=1)
    assert sorted([*parts.ids, *parts.test_ids]) == list(range(60))


def test_a_face_is_a_person() -> None:
    data = made("lacuna-10")
    np.testing.assert_array_equal(data.ids, data.y)
    np.testing.assert_array_equal(data.test_ids, data.y_test)


@pytest.mark.parametrize("name", ["adult", "cifar-2", "rcv1"])
def test_there_is_something_to_learn(name: str) -> None:
    data = made(name, n_rows=2000)
    majority = max(data.y_test.mean(), 1 - data.y_test.mean())
    model = LogisticRegression(max_iter=300).fit(data.X, data.y)
    assert model.score(data.X_test, data.y_test) > majority + 0.05


@pytest.mark.parametrize(("encode", "width"), [("one-hot", 108), ("ordinal", 14)])
def test_columns_of_words(encode: Any, width: int) -> None:
    data = made("adult", encode=encode)
    assert data.X.shape[1] == len(data.feature_names) == width
    if encode == "one-hot":
        np.testing.assert_array_equal(data.X[:, 6:].sum(axis=1), 8)
    else:
        np.testing.assert_array_equal(data.X[:, 6:], np.rint(data.X[:, 6:]))


def test_images_have_channels() -> None:
    data = made("cifar-10", n_rows=30)
    assert data.images().shape == (30, 3, 32, 32)
    assert data.X.min() >= 0
    assert data.X.max() <= 1


def test_without_a_number_of_rows_the_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_synthetic, "LARGEST", 2**16)
    data = datasets.load("higgs", synthetic="always")
    assert data.X.nbytes <= 2**16


def test_rare_classes_are_there() -> None:
    assert set(made("credit-card", n_rows=100).y) == {0, 1}
