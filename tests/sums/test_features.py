"""Random features: the kernel, exact products, golden bits, and forgetting."""

import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks as sklearn_checks

from letheon import ForgetPipeline
from letheon.checks import parametrize_with_checks
from letheon.data import SlotRows, as_ids
from letheon.delta import Delta, RowSource
from letheon.preprocessing import OneHotEncoder
from letheon.sums import RandomFeatures, Ridge
from letheon.sums import _features as module
from letheon.sums._features import multiply_exactly, turn_cosine


@parametrize_with_checks([RandomFeatures(n_components=7)])
def test_checks_of_forgetting(estimator: Any, check: Any) -> None:
    if check.__name__ == "check_forget_moves_answers_towards_retrain":
        pytest.skip("a removal changes no answer")
    check(estimator)


@sklearn_checks([RandomFeatures(n_components=7, random_state=0)])
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("gamma", [0.01, 0.5, 20.0])
def test_inner_products_approximate_the_kernel(gamma: float) -> None:
    X = np.random.default_rng(0).normal(size=(30, 5)) / np.sqrt(5)
    Z = RandomFeatures(gamma=gamma, n_components=8000, random_state=1).fit_transform(X)
    distances = ((X[:, None] - X) ** 2).sum(axis=2)
    assert np.abs(Z @ Z.T - np.exp(-gamma * distances)).max() < 0.06


@given(
    seed=st.integers(0, 10**6), shape=st.tuples(*[st.integers(1, 6)] * 3), is_sparse=st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_products_are_exact(seed: int, shape: tuple[int, int, int], is_sparse: bool) -> None:
    rng, largest = np.random.default_rng(seed), 2**31 - 1
    n, p, d = shape
    X = rng.integers(-largest, largest, (n, p), endpoint=True)
    X[rng.random((n, p)) < 0.3] = rng.choice([0, largest, -largest])
    W = rng.integers(-largest, largest, (p, d), endpoint=True)
    exact = X.astype(object) @ W.astype(object)
    product = multiply_exactly(sp.csr_array(X) if is_sparse else X, W)
    assert [int(v) % 2**64 for v in product.ravel()] == [v % 2**64 for v in exact.ravel()]


def test_products_are_exact_for_the_largest_number_of_columns() -> None:
    X = np.full((1, 2**20), 2**31 - 1, np.int64)
    exact = 2**20 * (2**31 - 1) ** 2 % 2**64
    assert int(multiply_exactly(X, X.T)[0, 0]) % 2**64 == exact


def test_cosine() -> None:
    phases = np.random.default_rng(0).integers(0, 2**64, 10_000, np.uint64, endpoint=False)
    exact = np.cos(2 * np.pi * phases.astype(np.float64) * 2.0**-64)
    np.testing.assert_allclose(turn_cosine(phases), exact, atol=1e-12)


def compute_digest(scale: float = 1.0) -> str:
    """Return the hash of features of many rows; run in a process with another BLAS kernel too."""
    X = np.random.default_rng(0).normal(size=(200, 37)) * scale
    model = RandomFeatures(gamma=0.3, n_components=64, random_state=3).fit(X)
    return hashlib.sha256(model.transform(X).tobytes()).hexdigest()


# Golden: the same bits on every machine.
GOLDEN = "917e6f8321998c699c0938383363a8645ca2fcce8b687b5fddc62ef616e674b3"


def test_features_have_the_same_bits_on_every_machine() -> None:
    assert compute_digest() == GOLDEN
    code = "from tests.sums.test_features import compute_digest; print(compute_digest())"
    for kernel in ("Prescott", "Haswell"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip() == GOLDEN


def test_sparse_rows_have_the_same_features() -> None:
    X = np.random.default_rng(0).poisson(0.5, (20, 6)).astype(float)
    model = RandomFeatures(random_state=0).fit(X)
    np.testing.assert_array_equal(model.transform(X), model.transform(sp.csr_array(X)))


def test_large_values_are_clipped() -> None:
    model = RandomFeatures(random_state=0).fit([[1.0]])
    far = model.transform([[1e300], [2.0**15], [-1e300]])
    np.testing.assert_array_equal(far[0], far[1])
    assert (far[0] != far[2]).any()


def test_wrong_parameters_are_refused() -> None:
    for parameters, text in (
        ({"gamma": "scale"}, "depends on the rows"),
        ({"gamma": 1e-30}, "expected a number from"),
        ({"gamma": -1.0}, "gamma"),
        ({"n_components": 0}, "n_components"),
    ):
        with pytest.raises(ValueError, match=text):
            RandomFeatures(**parameters).fit([[1.0]])


def test_in_a_pipeline_whose_columns_vanish() -> None:
    rng = np.random.default_rng(0)
    X = rng.choice(["a", "b", "c"], (30, 2)).astype(object)
    X[4, 0] = "only here"
    y = rng.normal(size=30)

    def make() -> ForgetPipeline:
        return ForgetPipeline(
            [
                ("encode", OneHotEncoder()),
                ("features", RandomFeatures(n_components=9, random_state=1)),
                ("model", Ridge(random_state=2)),
            ]
        )

    model = make().fit(X, y)
    for person in (3, 4, 5):
        model.forget([person])
    rest = [k for k in range(30) if k not in (3, 4, 5)]
    assert model.digest() == make().fit(X[rest], y[rest], ids=rest).digest()


def test_a_plan_without_changed_columns_keeps_the_weights() -> None:
    rows = SlotRows(np.ones((3, 2)), None, as_ids([1, 2, 3]))
    model = RandomFeatures(random_state=0)._fit_source(RowSource(rows))
    plan = model._prepare_delta(Delta(before=RowSource(rows), source=RowSource(rows)))
    assert plan.published is model.published_
    assert plan.columns == ()


def test_planted_bug_a_cosine_of_libm(monkeypatch: pytest.MonkeyPatch) -> None:
    def cosine(phases: Any) -> Any:
        return np.cos(2 * np.pi * (phases.astype(np.float64) * 2.0**-64))

    monkeypatch.setattr(module, "turn_cosine", cosine)
    assert compute_digest() != GOLDEN
