"""The real files, where ``$LETHEON_DATA`` has them: numbers of rows, columns and positives."""

from typing import Any

import numpy as np
import pytest

from letheon import datasets


def real(name: str, **options: Any) -> datasets.Dataset:
    if not datasets.present(name):
        pytest.skip(f"no files of {name} under LETHEON_DATA")
    return datasets.load(name, **options)


def labels(data: datasets.Dataset) -> np.ndarray[Any, Any]:
    return data.y if data.y_test is None else np.concatenate([data.y, data.y_test])


# The lists of words in adult.names that are easy to get wrong: one person from Holland.
COUNTRIES = 41


def test_adult() -> None:
    data = real("adult")
    assert data.X.shape == (32_561, 108)
    assert data.X_test.shape == (16_281, 108)
    assert labels(data).mean() == pytest.approx(0.2393, abs=5e-5)
    np.testing.assert_array_equal(data.X[:, 6:].sum(axis=1), 8)
    countries = [name for name in data.feature_names if name.startswith("native-country=")]
    assert len(countries) == COUNTRIES + 1
    assert "native-country=Holand-Netherlands" in countries
    assert list(data.X[0, :6]) == [39, 77516, 13, 2174, 0, 40]
    synthetic = datasets.load("adult", synthetic="always", n_rows=9)
    assert synthetic.X.shape[1] == data.X.shape[1]


def test_mnist() -> None:
    data = real("mnist")
    assert data.X.shape == (60_000, 784)
    assert data.X_test.shape == (10_000, 784)
    assert list(data.y[:5]) == [5, 0, 4, 1, 9]
    assert data.X.min() == 0
    assert data.X.max() == 1
    chosen = np.isin(data.y, (3, 8))
    pair = real("mnist", variant="3-vs-8")
    assert len(pair.y) == 11_982
    np.testing.assert_array_equal(pair.X, data.X[chosen])
    np.testing.assert_array_equal(pair.y, data.y[chosen] == 8)


def test_diabetes() -> None:
    data = real("diabetes", encode="ordinal")
    assert data.X.shape == (101_766, 47)
    assert data.y.mean() == pytest.approx(0.4609, abs=5e-5)
    assert data.ids is not None
    assert len(data.people) == 71_518
    assert data.ids[0] == 8222157
    assert np.isfinite(data.X).all()


@pytest.mark.soak
def test_census() -> None:
    data = real("census", encode="ordinal")
    assert data.X.shape == (199_523, 40)
    assert data.X_test.shape == (99_762, 40)
    assert labels(data).mean() == pytest.approx(0.0620, abs=5e-5)
    assert list(data.X[0, :7]) == [73, 0, 0, 0, 0, 0, 0]
    assert "instance weight" not in data.feature_names
    assert len(set(data.X[:, data.feature_names.index("country of birth self")])) == 43


def test_higgs() -> None:
    data = real("higgs")
    if len(data.y) != 10_984:
        pytest.skip("another file of HIGGS")
    assert data.X.shape == (10_984, 28)
    assert data.y.mean() == pytest.approx(0.53, abs=5e-5)
    assert data.X[0, 0] == np.float32(0.34186098)


def test_covtype() -> None:
    data = real("covtype")
    if len(data.y) != 15_000:
        pytest.skip("another file of Covertype")
    assert data.X.shape == (15_000, 54)
    assert set(data.y) == set(range(7))
    np.testing.assert_array_equal(data.X[:, 10:].sum(axis=1), 2)
    pair = real("covtype", variant="binary")
    assert pair.y.mean() == pytest.approx(0.4861, abs=5e-5)
    np.testing.assert_array_equal(pair.y, data.y == 1)


@pytest.mark.soak
def test_cifar() -> None:
    data = real("cifar-2")
    assert data.X.shape == (10_000, 3_072)
    assert data.X_test.shape == (2_000, 3_072)
    assert np.bincount(labels(data)).tolist() == [6_000, 6_000]
    assert data.images().shape == (10_000, 3, 32, 32)
    # Ships are on the sea: their pictures are bluer than those of cats.
    blue = data.images()[:, 2].mean(axis=(1, 2)) - data.images()[:, 0].mean(axis=(1, 2))
    assert blue[data.y == 1].mean() > blue[data.y == 0].mean() + 0.05
