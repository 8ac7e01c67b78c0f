"""Claims that contradict themselves cannot be made; facts are tied to a text by its hash."""

import dataclasses
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import letheon
from letheon import ForgetPipeline, NaiveUnlearner, SISAClassifier, SISARegressor
from letheon.guarantee import FAMILIES, KINDS, NEEDS, TASKS, Guarantee, MethodFacts

METHODS = {
    "CertifiedHeadClassifier": "certified",
    "BoostingClassifier": "exact",
    "BoostingRegressor": "exact",
    "DaREForestClassifier": "exact",
    "DaREForestRegressor": "exact",
    "DeepObliviateClassifier": "empirical",
    "DeltaGradClassifier": "empirical",
    "DeltaGradNetClassifier": "empirical",
    "DescentToDeleteClassifier": "certified",
    "FisherClassifier": "certified",
    "FisherNetClassifier": "empirical",
    "ForgetPipeline": "exact",
    "InfluenceClassifier": "certified",
    "InfluenceRegressor": "certified",
    "NaiveUnlearner": "exact",
    "SISAClassifier": "exact",
    "SISANetClassifier": "exact",
    "SISANetRegressor": "exact",
    "SISARegressor": "exact",
}
NETS = {
    "CertifiedHeadClassifier",
    "DeepObliviateClassifier",
    "DeltaGradNetClassifier",
    "FisherNetClassifier",
    "SISANetClassifier",
    "SISANetRegressor",
}


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
    with pytest.raises(
        ValueError, match=rf"{name}='{value}' is unknown; expected one of .*{allowed}"
    ):
        claim(**{name: value})


@pytest.mark.parametrize("kind", ["exact", "empirical"])
@pytest.mark.parametrize("number", ["epsilon", "delta", "spent", "budget"])
def test_only_certified_claims_have_numbers(kind: str, number: str) -> None:
    with pytest.raises(ValueError, match=f"kind='{kind}' has epsilon"):
        claim(kind=kind, **{number: 0.0})


@pytest.mark.parametrize("missing", [{"epsilon": 1.0}, {"delta": 0.1}, {}])
def test_certified_claims_state_both_numbers(missing: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="requires both"):
        claim(kind="certified", **missing)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(-0.1, 0.1), (1.0, 1.0), (1.0, -0.1), (float("nan"), 0.1), (1.0, float("nan"))],
)
def test_certified_numbers_are_in_range(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="expected epsilon >= 0 and 0 <= delta < 1"):
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


def declare(**changes: Any) -> MethodFacts:
    plain = {
        "method": "mine",
        "applicability": "anything",
        "exact": True,
        "strength": "strong",
        "efficiency_parameters": (),
        "certifiability_parameters": (),
        "requests": "oblivious",
        "releases": "latest-only",
        "state_holds_rows": True,
        "definition_text": "**Claim.** None.",
    }
    return MethodFacts(**{**plain, **changes})


def facts_of(name: str) -> MethodFacts:
    if name in NETS:
        pytest.importorskip("torch")
    facts: MethodFacts = getattr(letheon, name).facts
    return facts


def test_every_method_of_letheon_is_listed_here() -> None:
    ends = ("Classifier", "Regressor", "Unlearner", "Pipeline")
    assert {name for name in letheon.__all__ if name.endswith(ends)} == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_methods_say_whom_they_serve(name: str) -> None:
    facts = facts_of(name)
    assert facts.certificate == METHODS[name]
    assert facts.families == (("net",) if name in NETS else facts.families)
    task = "regression" if name.endswith("Regressor") else "classification"
    assert task in facts.tasks
    assert facts.families
    assert facts.batches


@given(exact=st.booleans(), certificate=st.sampled_from([None, *KINDS]))
def test_exact_and_certificate_never_contradict(exact: bool, certificate: Any) -> None:
    if certificate is not None and exact != (certificate == "exact"):
        with pytest.raises(ValueError, match="contradict"):
            declare(exact=exact, certificate=certificate)
        return
    made = declare(exact=exact, certificate=certificate)
    assert made.exact == (made.certificate == "exact")
    assert made.certificate == (certificate or ("exact" if exact else "empirical"))
    assert dataclasses.replace(made) == made


@pytest.mark.parametrize(
    ("name", "allowed"), [("families", FAMILIES), ("tasks", TASKS), ("needs", tuple(NEEDS))]
)
def test_facts_speak_in_known_words(name: str, allowed: tuple[str, ...]) -> None:
    assert getattr(declare(**{name: allowed}), name) == allowed
    with pytest.raises(ValueError, match=f"{name}='wooden' is unknown; expected one of"):
        declare(**{name: ("wooden",)})


def test_facts_without_the_new_words_stay_valid() -> None:
    old = declare(exact=False)
    assert (old.families, old.tasks, old.needs, old.batches) == ((), (), (), False)
    assert old.certificate == "empirical"


def test_a_pipeline_is_as_good_as_its_weakest_step() -> None:
    scaler = ("scale", NaiveUnlearner(None))
    linear = letheon.InfluenceClassifier()
    mixed = ForgetPipeline([scaler, ("model", linear)]).facts
    assert (mixed.exact, mixed.certificate) == (False, "certified")
    assert (mixed.families, mixed.needs) == (linear.facts.families, linear.facts.needs)
    assert ForgetPipeline([scaler, ("model", NaiveUnlearner(None))]).facts.certificate == "exact"


def test_one_line_of_text() -> None:
    exact = Guarantee(kind="exact", reference="a theorem", residual_state=("file.bin",))
    text = "exact, oblivious requests, latest-only; residual state: file.bin; a theorem"
    assert str(exact) == text
    certified = Guarantee(kind="certified", reference="a theorem", epsilon=1.0, delta=1e-4)
    assert "; epsilon 1, delta 0.0001; a theorem" in str(certified)
