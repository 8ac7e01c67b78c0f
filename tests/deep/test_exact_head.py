"""Exact heads on frozen backbones: the contract, the head on the features, speed, errors."""

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import parametrize_with_checks as sklearn_checks
from torch import nn

import letheon
from letheon.checks import parametrize_with_checks
from letheon.deep import MLP, Backbone, ExactHeadClassifier
from letheon.deep._backbone import FROZEN
from letheon.sums import GaussianNB, LinearDiscriminantAnalysis, Ridge, RidgeClassifier


def squashed() -> nn.Module:
    """Features of any table."""
    return nn.Softsign()


def body() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU())


def make_backbone() -> Backbone:
    torch.manual_seed(3)
    return Backbone(body, body().state_dict())


def make_rows(n: int = 60) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    return (rng.normal(size=(n, 5)) + y[:, None]).astype(np.float32), y


HEADS = ["ridge", "lda", GaussianNB()]
SQUASHED = [
    ExactHeadClassifier(Backbone(squashed)),
    ExactHeadClassifier(Backbone(squashed), "lda", n_components=5),
]


@parametrize_with_checks(SQUASHED)
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@sklearn_checks([ExactHeadClassifier(Backbone(squashed), random_state=0)])
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_it_is_the_head_on_the_features(head: Any) -> None:
    X, y = make_rows()
    model = ExactHeadClassifier(make_backbone(), head, random_state=4).fit(X, y)
    named: dict[Any, Any] = {
        "ridge": RidgeClassifier(random_state=4),
        "lda": LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-3, random_state=4),
    }
    alone: Any = named[head] if isinstance(head, str) else copy.deepcopy(head)
    features = model.backbone_.compute_row_features(X, device="cpu")
    alone.fit(features, y)
    for ids in ([4], [5, 6]):
        model.forget(ids)
        alone.forget(ids)
    assert model.predict(X).tolist() == alone.predict(model.features(X)).tolist()
    assert hasattr(model, "predict_proba") == (head != "ridge")
    assert model.guarantee_.kind == "exact"
    assert model.guarantee_.assumptions[-1] == FROZEN


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(0, 29), max_size=8, unique=True),
    st.sampled_from(HEADS),
    st.sampled_from([None, 4]),
)
def test_any_sequence_equals_a_fresh_fit(leaving: list[int], head: Any, extra: Any) -> None:
    X, y = make_rows(30)

    def make() -> ExactHeadClassifier:
        return ExactHeadClassifier(make_backbone(), head, n_components=extra, random_state=4)

    model = make().fit(X[:20], y[:20])
    model.learn(X[20:], y[20:], ids=list(range(20, 30)))
    for person in leaving:
        model.forget([person])
    rest = [k for k in range(30) if k not in leaving]
    assert model.digest() == make().fit(X[rest], y[rest], ids=rest).digest()


def test_random_features_are_appended() -> None:
    X, y = load_digits(return_X_y=True)
    torch.manual_seed(0)
    backbone = Backbone(MLP(widths=(64,), scale=1 / 16), arguments=((64,), 32))
    scores = []
    for n_components in (None, 128):
        model = ExactHeadClassifier(backbone, n_components=n_components, random_state=0)
        scores.append(model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]))
        assert model.features(X).shape == (len(X), 32 + (n_components or 0))
    assert scores[1] > scores[0] + 0.02


def test_a_head_with_its_own_seed() -> None:
    X, y = make_rows()
    head = RidgeClassifier(random_state=9)
    model = ExactHeadClassifier(make_backbone(), head, n_components=3).fit(X, y)
    assert model.seed_ == 9
    again = ExactHeadClassifier(make_backbone(), head, n_components=3, random_state=9).fit(X, y)
    assert again.head_.digest() == model.head_.digest()


def test_files_and_copies(tmp_path: Path) -> None:
    X, y = make_rows()
    model = ExactHeadClassifier(make_backbone(), "lda", n_components=4, random_state=4).fit(X, y)
    letheon.save(model, tmp_path / "model")
    others = [
        letheon.load(tmp_path / "model", trusted=["tests.deep.test_exact_head.body"]),
        copy.copy(model),
        copy.deepcopy(model),
    ]
    before = model.digest()
    for other in others:
        other.forget([3])
    assert model.digest() == before
    model.forget([3])
    assert {other.digest() for other in others} == {model.digest()}


def test_one_person_takes_a_few_milliseconds() -> None:
    """Including the solution of the head; the limit is 5 ms on an idle CPU."""
    X, y = load_digits(return_X_y=True)
    torch.manual_seed(0)
    backbone = Backbone(MLP(widths=(64,), scale=1 / 16), arguments=((64,), 64))
    model = ExactHeadClassifier(backbone, random_state=0, device="cpu").fit(X, y)
    seconds = []
    for person in range(15):
        start = time.process_time()
        model.forget([person])
        model._finish_pending()
        seconds.append(time.process_time() - start)
    assert np.median(seconds) < 0.02
    assert model.score(X, y) > 0.85


def test_wrong_heads_are_refused() -> None:
    X, y = make_rows()
    for head in ("svm", Ridge(), None, RidgeClassifier):
        with pytest.raises(TypeError, match=r"classifier of letheon\.sums"):
            ExactHeadClassifier(make_backbone(), head).fit(X, y)
    with pytest.raises(TypeError, match="expected a Backbone"):
        ExactHeadClassifier(body()).fit(X, y)
    with pytest.raises(ValueError, match="shrinkage"):
        ExactHeadClassifier(make_backbone(), "lda", shrinkage=2.0).fit(X, y)
