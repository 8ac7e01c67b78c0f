"""Claims that contradict themselves cannot be made; facts are tied to a text by its hash."""

import dataclasses
import hashlib
from typing import Any

import pytest

from letheon import ForgetPipeline, NaiveUnlearner, SISAClassifier, SISARegressor
from letheon.guarantee import Guarantee


def claim(**changes: Any) -> Guarantee:
    return Guarantee(**{"kind": "exact", "reference": "a theorem", **changes})


def test_defaults_claim_as_little_as_possible() -> None:
    plain = claim()
    assert (plain.requests, plain.releases) == ("oblivious", "latest-only")
    assert plain.epsilon is None
    assert plain.residual_state == ()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("kind", "perfect", "exact"),
        ("requests", "any", "adaptive"),
        ("releases", "all", "labels-only"),
    ],
)
def test_unknown_words_are_refused(name: str, value: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}='{value}' is not one of .*{allowed}"):
        claim(**{name: value})


@pytest.mark.parametrize("kind", ["exact", "empirical"])
@pytest.mark.parametrize("number", ["epsilon", "delta", "spent", "budget"])
def test_only_certified_claims_have_numbers(kind: str, number: str) -> None:
    with pytest.raises(ValueError, match=f"only a certified guarantee.*{kind}"):
        claim(kind=kind, **{number: 0.0})


@pytest.mark.parametrize("missing", [{"epsilon": 1.0}, {"delta": 0.1}, {}])
def test_certified_claims_state_both_numbers(missing: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="states epsilon and delta"):
        claim(kind="certified", **missing)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(-0.1, 0.1), (1.0, 1.0), (1.0, -0.1), (float("nan"), 0.1), (1.0, float("nan"))],
)
def test_certified_numbers_are_in_range(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="need epsilon >= 0 and 0 <= delta < 1; got"):
        claim(kind="certified", epsilon=epsilon, delta=delta)


def test_certified_claim_at_the_edges() -> None:
    made = claim(kind="certified", epsilon=0.0, delta=0.0, spent=1.0, budget=2.0)
    assert (made.epsilon, made.delta, made.spent, made.budget) == (0.0, 0.0, 1.0, 2.0)


def test_claims_are_frozen_values() -> None:
    assert claim() == claim()
    assert hash(claim()) == hash(claim())
    with pytest.raises(dataclasses.FrozenInstanceError):
        claim().kind = "certified"  # type: ignore[misc]


def test_tuning_is_a_note_on_a_copy() -> None:
    plain = claim()
    noted = plain.with_tuning("grid search on all rows")
    assert noted.tuning == "grid search on all rows"
    assert plain.tuning is None
    assert noted.with_tuning(None) == plain


@pytest.mark.parametrize("method", [NaiveUnlearner, ForgetPipeline, SISAClassifier, SISARegressor])
def test_definition_and_its_hash(method: Any) -> None:
    facts = method.facts
    assert facts.definition.startswith("# ")
    assert all(
        f"**{part}" in facts.definition for part in ("Claim", "Assumptions", "Removal", "Proof")
    )
    assert facts.definition_digest == hashlib.sha256(facts.definition.encode("utf-8")).hexdigest()


@pytest.mark.parametrize("method", [NaiveUnlearner, SISAClassifier, SISARegressor])
def test_declared_parameters_exist(method: Any) -> None:
    named = {*method.facts.efficiency_parameters, *method.facts.certifiability_parameters}
    assert named <= set(method(None).get_params(deep=False))
