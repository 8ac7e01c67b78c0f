"""Rows for nets: tables, images and tensors in; one copy, float32 or uint8."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator

from letheon.data import SlotRows, as_ids
from letheon.deep import SISANetClassifier
from letheon.deep._device import check_query_rows, copy_rows, shape_attributes
from letheon.deep._slots import sample_calibration_rows
from letheon.seeds import Purpose


class Net(BaseEstimator):
    """Stands for the estimator."""


def image(n: int = 5, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(0).integers(0, 256, (n, 1, 4, 3)).astype(dtype)


GIVEN: list[tuple[Any, Any]] = [
    (image(), np.uint8),
    (image(dtype=np.int64), np.float32),
    (image(dtype=np.float64), np.float32),
    (image(dtype=np.float16), np.float32),
    (image() > 99, np.float32),
    (image()[::-1], np.uint8),
    (np.asfortranarray(image(dtype=np.float32)), np.float32),
    (torch.from_numpy(image()), np.uint8),
    (torch.from_numpy(image(dtype=np.float32)).requires_grad_(), np.float32),
    (torch.from_numpy(image(dtype=np.float32)).to(torch.bfloat16), np.float32),
    (image()[:, 0, 0].tolist(), np.float32),
    (pd.DataFrame(image()[:, 0, 0], columns=["a", "b", "c"]), np.float32),
]


@pytest.mark.parametrize(("X", "dtype"), GIVEN)
def test_rows_are_held_in_memory_of_their_own(X: Any, dtype: Any) -> None:
    rows = copy_rows(Net(), X)
    expected = X.detach().float().numpy() if isinstance(X, torch.Tensor) else np.asarray(X)
    assert rows.dtype == dtype
    assert np.array_equal(rows, expected.astype(dtype))
    assert rows.flags.c_contiguous
    assert rows.flags.writeable
    SlotRows(rows, np.zeros(len(rows)), as_ids(list(range(len(rows)))))  # accepts no shared memory
    rows[:] = 0
    again = X.detach().float().numpy() if isinstance(X, torch.Tensor) else np.asarray(X)
    assert np.array_equal(again, expected)
    assert np.any(again)


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (np.ones(4), ValueError, "2D array"),
        (np.ones((0, 3)), ValueError, "0 sample"),
        (np.ones((3, 0)), ValueError, "0 feature"),
        (np.array([[np.nan, 1.0]]), ValueError, "NaN"),
        (np.full((2, 1, 2), np.inf), ValueError, "infinity"),
        (np.array([[1j, 1.0]]), ValueError, "Complex"),
        (torch.ones(2, 2, dtype=torch.complex64), ValueError, "Complex"),
        (np.array([["a", "b"]]), ValueError, "X contains strings; expected numbers"),
        (
            pd.DataFrame({"day": pd.to_datetime(["2020-02-03"]), "size": [1.0]}),
            ValueError,
            "X contains dates; expected numbers",
        ),
        (sp.csr_array(np.eye(3)), TypeError, "Net takes dense rows only"),
    ],
)
def test_rows_that_no_net_takes(X: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        copy_rows(Net(), X)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.array([["4711", "private"]], object), "strings"),
        (np.array([4711.0, 1.0]), "Reshape your data"),
        (4711.0, "Reshape your data"),
        (np.array([[4711 + 1j, 1.0]]), "Complex data not supported"),
    ],
)
@pytest.mark.parametrize("ask", [copy_rows, lambda model, X: check_query_rows(model, X, (2, 1))])
def test_errors_quote_no_row(X: Any, message: str, ask: Any) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ask(Net(), X)
    assert "4711" not in str(caught.value)
    assert "private" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_question_is_not_copied_unless_it_must_be() -> None:
    X = image(dtype=np.float32)
    assert check_query_rows(Net(), X, (1, 4, 3)) is X
    X.flags.writeable = False
    asked = check_query_rows(Net(), X, (1, 4, 3))
    assert asked.flags.writeable
    assert np.array_equal(asked, X)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_numbers_beyond_float32() -> None:
    with pytest.raises(ValueError, match="infinity"):
        copy_rows(Net(), np.array([[1e300, 1.0]]))


def test_a_question_has_the_shape_of_the_fit() -> None:
    model = Net()
    vars(model).update(shape_attributes(image(), (1, 4, 3)))
    assert vars(model) == {"n_features_in_": 12}
    assert np.array_equal(check_query_rows(model, image(2), (1, 4, 3)), image(2))
    with pytest.raises(
        ValueError, match=r"rows of shape \(4, 3\); .* fitted with rows of shape \(1, 4, 3\)"
    ):
        check_query_rows(model, image()[:, 0], (1, 4, 3))


def test_images_forget_the_names_of_a_table() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, 1.0]})
    model: Any = SISANetClassifier(n_shards=1, epochs=1, device="cpu").fit(table, [0, 1])
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.n_features_in_ == 2
    model.fit(image(2), [0, 1])
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 12


def sample_ids(names: list[int], limit: int) -> list[int]:
    n = len(names)
    rows = SlotRows(np.ones((n, 1), np.float32), np.zeros(n), as_ids(names))
    return [names[k] for k in sample_calibration_rows(rows, np.arange(n), 3, limit)]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=25), st.integers(1, 12), st.integers(0, 30)
)
def test_the_sample_is_that_of_the_rows_held(names: list[int], limit: int, gone: int) -> None:
    chosen = sample_ids(names, limit)
    assert len(chosen) == min(limit, len(names))
    hashes = dict(zip(names, as_ids(names).hashes(3, Purpose.CALIBRATION).tolist(), strict=True))
    expected = sorted(hashes[name] for name in names)[:limit]
    assert sorted(hashes[name] for name in chosen) == expected
    # Removing another row never drives a row out of the sample.
    later = sample_ids([name for name in names if name != gone], limit)
    for name in set(chosen) - {gone}:
        assert later.count(name) >= chosen.count(name)
