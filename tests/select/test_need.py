"""Applicable methods, and the reasons for exclusion, from declared facts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from letheon import (
    DaREForestClassifier,
    DaREForestRegressor,
    DeltaGradClassifier,
    DescentToDeleteClassifier,
    FisherClassifier,
    InfluenceClassifier,
    NaiveUnlearner,
    SISAClassifier,
)
from letheon.guarantee import FAMILIES, KINDS, NEEDS, RELEASES, REQUESTS, Guarantee, MethodFacts
from letheon.select import Need
from tests.select.planted import FACTS, PlantedMethod

SISA = SISAClassifier(LogisticRegression())


def why_not(estimator: Any, **need: Any) -> str:
    return Need(**need).why_not(estimator, estimator.facts)


@pytest.mark.parametrize(
    ("estimator", "need", "words"),
    [
        (InfluenceClassifier(), {"guarantee": "exact"}, "you require exact; it is certified"),
        (
            DeltaGradClassifier(),
            {"guarantee": "certified"},
            "you require certified; it is empirical",
        ),
        (InfluenceClassifier(), {"family": "forest"}, "you require a forest; it supports line"),
        (DaREForestClassifier(), {"family": "linear"}, "you require a linear model; it supp"),
        (FisherClassifier(), {"task": "regression"}, "it supports classification only"),
        (DaREForestClassifier(), {"task": "regression"}, "this estimator is for the other"),
        (DaREForestRegressor(), {"task": "classification"}, "this estimator is for the other"),
        (SISA, {"requests": "adaptive"}, "it covers oblivious requests only"),
        (
            SISA,
            {"releases": "every-version"},
            "sees every version of the model; it covers observers",
        ),
        (SISA, {"strong": True}, "you require a strong method; it is weak"),
        (
            InfluenceClassifier(),
            {"properties": ("smooth", "strongly-convex")},
            "it needs a Hessian that is Lipschitz and gradients with a known bound, which",
        ),
        (
            DeltaGradClassifier(),
            {"properties": ("smooth", "strongly-convex", "gradient-descent")},
            "it needs a Hessian that is Lipschitz and gradients with a known bound, which",
        ),
    ],
)
def test_reasons_are_made_from_facts(estimator: Any, need: dict[str, Any], words: str) -> None:
    assert words in why_not(estimator, **need)


@pytest.mark.parametrize(
    ("estimator", "need"),
    [
        (DaREForestClassifier(), {"guarantee": "exact", "family": "forest"}),
        (DaREForestClassifier(), {"guarantee": "certified", "strong": True}),
        (SISA, {"family": "linear", "properties": (), "immediate": False}),
        (InfluenceClassifier(), {"guarantee": "certified", "family": "linear"}),
        (DescentToDeleteClassifier(), {"requests": "adaptive"}),
        (SISA, {"releases": "labels-only"}),
        (NaiveUnlearner(None), {"guarantee": "exact", "strong": True}),
    ],
)
def test_who_has_what_is_needed_is_applicable(estimator: Any, need: dict[str, Any]) -> None:
    assert why_not(estimator, **need) == ""


def test_all_reasons_are_given() -> None:
    reasons = why_not(SISA, requests="adaptive", strong=True)
    assert "oblivious requests only" in reasons
    assert "weak" in reasons


def test_who_gains_nothing_from_waiting_is_left_out_when_requests_may_wait() -> None:
    alone = MethodFacts(**{**FACTS, "batches": False})
    assert "gains nothing" in Need(immediate=False).why_not(PlantedMethod(), alone)
    assert Need(immediate=True).why_not(PlantedMethod(), alone) == ""


def test_what_facts_leave_open_is_not_held_against_a_method() -> None:
    silent = MethodFacts(**{**FACTS, "families": (), "tasks": ()})
    assert Need(family="forest", task="regression").why_not(PlantedMethod(), silent) == ""


needs = st.builds(
    Need,
    family=st.sampled_from(FAMILIES),
    guarantee=st.sampled_from(KINDS),
    requests=st.sampled_from(REQUESTS),
    releases=st.sampled_from(RELEASES),
    strong=st.booleans(),
    immediate=st.booleans(),
    properties=st.none() | st.lists(st.sampled_from(list(NEEDS))).map(tuple),
)


@given(need=needs)
def test_asking_for_less_never_leaves_out_more(need: Need) -> None:
    for estimator in (DaREForestClassifier(), SISA, InfluenceClassifier(), DeltaGradClassifier()):
        if not need.why_not(estimator, estimator.facts):
            assert Need().why_not(estimator, estimator.facts) == ""
            easier = Need(family=need.family, guarantee="empirical", requests="oblivious")
            assert easier.why_not(estimator, estimator.facts) == ""


@pytest.mark.parametrize(
    ("name", "word"),
    [("family", "tree"), ("task", "ranking"), ("guarantee", "sure"), ("properties", ("nice",))],
)
def test_unknown_words_are_refused(name: str, word: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be one of"):
        Need(**{name: word})


@pytest.mark.parametrize(
    ("need", "words"),
    [
        ({"guarantee": "exact"}, "is certified, you require exact"),
        ({"requests": "adaptive"}, "does not cover adaptive requests"),
        ({"releases": "every-version"}, "who see the latest model only"),
        ({"epsilon": 0.5}, "its epsilon is 1, you require at most 0.5"),
        ({"delta": 1e-6}, "its delta is 0.001, you require at most 1e-06"),
        ({"guarantee": "certified", "epsilon": 1.0, "delta": 1e-3}, ""),
    ],
)
def test_the_claim_of_the_model_is_held_against_the_need(need: dict[str, Any], words: str) -> None:
    claim = Guarantee(kind="certified", reference="none", epsilon=1.0, delta=1e-3)
    reasons = Need(**need).why_not_claim(claim)
    assert words in reasons
    assert bool(reasons) == bool(words)
