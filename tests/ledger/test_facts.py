"""What is computed beside a model for its certificate: valid for every family, and no leak."""

import copy
import json
import re
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from letheon import (
    ForgetSearchCV,
    InfluenceClassifier,
    NaiveUnlearner,
    SISAClassifier,
)
from letheon.centroid import NearestCentroid
from letheon.exceptions import CertificateError
from letheon.ledger.certificates.claims import (
    certificate_account,
    decimal,
    describe_parameters,
    figure,
    is_of_letheon,
    to_code,
)
from letheon.ledger.certificates.facts import (
    NO_MONITOR,
    TestFigures,
    collect_facts,
    test_metric,
    without_times,
)
from letheon.ledger.models.examine import copy_rows
from letheon.monitor import Reading
from letheon.preprocessing import ForgetColumnTransformer, StandardScaler
from letheon.verifier import SCHEMAS, UNLEARNING, canonical, check_schema, parse_strict
from tests.ledger.forgetters import (
    CALLER,
    EPOCH,
    EVERY,
    MAKERS,
    SEED,
    Erased,
    Maker,
    erased,
    needs_torch,
    statement_of,
    table,
)
from tests.ledger.forgetters import NETS as NETS

# A second reader of the schema; it has no types.
VALIDATOR: Any = import_module("jsonschema").Draft202012Validator
DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?")


def significant_digits(text: str) -> str:
    """Return the digits of a decimal that carry information."""
    whole = text.partition("e")[0].lstrip("-").replace(".", "").lstrip("0")
    return whole.rstrip("0")


def reading(**fields: Any) -> Reading:
    known: dict[str, Any] = {
        "request": 1,
        "n_people": 2,
        "n_rows": 2,
        "since_retrain": 2,
        "rows_left": 58,
        "n_test": 30,
        "metric": 0.9,
        "metric_retrained": 0.9,
        "seconds": 0.01,
        "proxies": {"effectiveness": 0.012345, "certifiability": 1.2345},
        "guarantee": "certified",
    }
    return Reading(**known | fields)


@pytest.mark.parametrize("kind", ["erase", "retrain"])
@pytest.mark.parametrize("maker", EVERY)
def test_facts_of_every_family_make_a_valid_statement(maker: Maker, kind: str) -> None:
    facts = erased(maker, kind).facts
    statement = statement_of(facts)
    check_schema(statement)
    assert not [*VALIDATOR(SCHEMAS[UNLEARNING]).iter_errors(statement)]
    assert parse_strict(canonical(facts)) == facts


@pytest.mark.parametrize("maker", EVERY)
def test_nothing_of_ids_rows_or_seeds_is_in_the_facts(maker: Maker) -> None:
    X, _, ids = table()
    text = json.dumps(erased(maker, training=EPOCH).facts)
    values = [repr(float(value)) for value in X.ravel()]
    assert not [each for each in (*ids, *values, str(SEED), f"{SEED:x}") if each in text]
    assert EPOCH["key"] not in text


@pytest.mark.parametrize("maker", EVERY)
def test_figures_have_two_digits(maker: Maker) -> None:
    facts = erased(maker, test=TestFigures("accuracy", 0.912345, 0.912999, 77)).facts
    accounting = facts["guarantee"]["accounting"]
    figures = [each["value"] for each in facts["measurements"].values()]
    figures += [accounting[name] for name in ("spent", "budget") if name in accounting]
    assert [each for each in figures if len(significant_digits(each)) > 2] == []


@pytest.mark.parametrize("maker", EVERY)
def test_the_claim_is_the_models_own(maker: Maker) -> None:
    model, _, facts = erased(maker)
    said, own = facts["guarantee"], model.guarantee_
    assert (said["kind"], said["requests"], said["releases"]) == (
        own.kind,
        own.requests,
        own.releases,
    )
    assert ("epsilon" in said) == (own.kind == "certified")
    assert facts["method"]["definition"]["sha256"] == model.facts.definition_digest


@pytest.mark.parametrize("maker", EVERY)
def test_every_assumption_is_explained_in_a_definition(maker: Maker) -> None:
    model, _, facts = erased(maker)
    steps = [step for _, step in getattr(model, "steps_", ()) if hasattr(step, "facts")]
    parts = [model, *steps, *([model.head_] if hasattr(model, "head_") else [])]
    texts = " ".join(part.facts.definition for part in parts)
    assert [code for code in facts["guarantee"]["assumptions"] if f"`{code}`" not in texts] == []


@pytest.mark.parametrize("maker", EVERY)
def test_a_retrain_is_a_fresh_fit_of_any_method(maker: Maker) -> None:
    model, _, facts = erased(maker, "retrain")
    method, said = facts["method"], facts["guarantee"]
    assert method["name"] == "retrain"
    assert method["definition"]["sha256"] == NaiveUnlearner.facts.definition_digest
    assert method["parameters"]["estimator"].endswith(type(model).__name__.lower())
    assert (said["kind"], said["accounting"]["deletionsSinceRetrain"]) == ("exact", 0)
    assert facts["monitor"]["decision"] == "retrained"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("naive", "exact-history-independent-v1"),
        ("influence", "guo2020-residual-sum"),
        ("influence seeded", "none-empirical"),
        ("influence bare", "none-empirical"),
        ("fisher", "golatkar2020-closeness-per-request"),
        ("descent", "neel2020-residual"),
        ("descent 3.1", "neel2020-theorem-3.1"),
        ("descent 3.2", "neel2020-theorem-3.2"),
        ("descent 3.4", "neel2020-theorem-3.4"),
        ("descent 3.5", "neel2020-theorem-3.5"),
        ("descent parts by theorem", "neel2020-distributed"),
        ("deltagrad", "none-empirical"),
        ("pipeline certified", "guo2020-residual-sum"),
    ],
)
def test_rules_of_accounting(name: str, rule: str) -> None:
    assert erased(MAKERS[name]).facts["guarantee"]["accounting"]["rule"] == rule


@pytest.mark.parametrize(
    ("name", "mechanism", "scale"),
    [
        ("influence", "grid-release-discrete-gaussian", "0.01"),
        ("influence pure", "grid-release-discrete-laplace", "0.01"),
        ("fisher", "grid-release-fisher-gaussian", "0.01"),
        ("fisher secret", "grid-release-discrete-gaussian", "0.01"),
        ("descent pure", "grid-release-discrete-laplace", "0.01"),
        ("deltagrad noise", "output-perturbation-gaussian", "0.1"),
        ("pipeline certified", "grid-release-discrete-gaussian", "0.01"),
    ],
)
def test_noise_is_named_with_its_scale(name: str, mechanism: str, scale: str) -> None:
    noise = erased(MAKERS[name]).facts["method"]["noise"]
    assert (noise["mechanism"], noise["scale"]) == (mechanism, scale)


@pytest.mark.parametrize("name", ["naive", "sisa", "forest", "influence bare", "deltagrad"])
def test_without_noise_there_is_none(name: str) -> None:
    assert erased(MAKERS[name]).facts["method"]["noise"] == "none"


def test_commitments_to_noise_are_never_the_same() -> None:
    X, y, ids = table()
    models = [MAKERS["influence"]().fit(X, y, ids=ids) for _ in range(2)]
    assert models[0].noise_commitment_ != models[1].noise_commitment_


def test_the_commitment_of_the_model_is_published() -> None:
    """So that an auditor, who has the model, can check it."""
    removal = erased(MAKERS["influence"])
    assert removal.facts["method"]["noise"]["seedCommitment"] == removal.model.noise_commitment_


def test_a_seed_for_the_noise_is_told_but_not_which() -> None:
    facts = erased(MAKERS["influence seeded"]).facts
    assert "noise-secret" in facts["notClaimed"]
    assert not [name for name in facts["method"]["parameters"] if "seed" in name]
    assert facts["guarantee"]["kind"] == "empirical"


@needs_torch
def test_a_net_with_fisher_noise_has_none_after_a_retrain() -> None:
    assert erased(NETS["fisher net"], "retrain").facts["method"]["noise"] == "none"
    assert erased(NETS["fisher net"]).facts["method"]["noise"] != "none"


@pytest.mark.parametrize(
    ("training", "code"),
    [(CALLER, "operator-chose-the-seed"), (EPOCH, "beacon-not-witnessed")],
)
def test_who_chose_the_seed_is_told(training: dict[str, str], code: str) -> None:
    facts = erased(MAKERS["forest"], training=training).facts
    assert code in facts["notClaimed"]
    assert facts["method"]["trainingRandomness"] == {
        name: training[name] for name in ("rule", "beacon", "keyCommitment")
    }


def test_exact_removals_have_measures_by_proof() -> None:
    measured = erased(MAKERS["naive"]).facts["measurements"]
    proved = [measured[name] for name in ("effectiveness", "consistency", "certifiability")]
    assert [(each["value"], each["basis"], each["n"]) for each in proved] == [
        ("0", "by-proof", 0)
    ] * 3


def test_efficiency_is_rounded_down() -> None:
    measured = erased(MAKERS["naive"], seconds=0.3, retrain_seconds=63.89).facts["measurements"]
    assert measured["efficiency"] == {
        "metric": "speedup",
        "value": "210",
        "n": 1,
        "basis": "proxy-estimate",
    }


@pytest.mark.parametrize("timing", [{"retrain_seconds": None}, {"seconds": 0.0}])
def test_what_was_not_timed_is_not_claimed(timing: dict[str, Any]) -> None:
    facts = erased(MAKERS["naive"], **timing).facts
    assert facts["measurements"]["efficiency"]["metric"] == "not-measured"
    assert "efficiency-not-measured" in facts["notClaimed"]


def test_effectiveness_on_a_test_set_is_a_proxy_rounded_up() -> None:
    test = TestFigures("accuracy", now=0.9001, then=0.9132, n=500)
    measure = erased(MAKERS["influence"], test=test).facts["measurements"]["effectiveness"]
    assert measure == {
        "metric": "accuracy-diff",
        "value": "0.02",
        "n": 500,
        "basis": "proxy-estimate",
    }


@pytest.mark.parametrize("name", ["influence", "fisher", "descent", "descent published"])
def test_figures_do_not_tell_who_of_many_was_erased(name: str) -> None:
    X, y, ids = table()
    fitted = MAKERS[name]().fit(X, y, ids=ids)
    published = set()
    for person in range(12):
        model = copy.copy(fitted)
        receipt = model.forget([ids[person]])
        left = [each for each in range(len(ids)) if each != person]
        facts = collect_facts(
            guarantee_before=receipt.guarantee,
            after=model,
            receipt=receipt,
            rows=copy_rows(X[left], y[left], [ids[each] for each in left]),
            kind="erase",
            seconds=1.0 + person,
            retrain_seconds=60.0,
            training=CALLER,
            removed=1,
            since_retrain=1,
        )
        facts["method"]["noise"].pop("seedCommitment")
        facts["guarantee"]["accounting"] = certificate_account(facts["guarantee"]["accounting"])
        facts["measurements"] = without_times("certified", "influence", facts["measurements"])
        published.add(json.dumps(facts))
    assert len(published) == 1


def test_certified_models_certify_epsilon() -> None:
    facts = erased(MAKERS["influence"]).facts
    assert facts["measurements"]["certifiability"]["metric"] == "epsilon"
    assert facts["measurements"]["certifiability"]["basis"] == "by-proof"
    assert "consistency-not-measured" in facts["notClaimed"]


@pytest.mark.parametrize(("decision", "said"), [("keep", "keep"), ("retrain", "retrain-due")])
def test_the_monitors_decision_and_proxies_are_published(decision: Any, said: str) -> None:
    facts = erased(
        MAKERS["influence"], reading=reading(decision=decision), policy_digest="77" * 32
    ).facts
    assert facts["monitor"] == {"decision": said, "policy": {"sha256": "77" * 32}}
    measures = facts["measurements"]
    assert (measures["effectiveness"]["value"], measures["certifiability"]["value"]) == (
        "0.02",
        "2",
    )
    assert measures["certifiability"]["basis"] == "proxy-estimate"


def test_without_a_monitor_the_policy_says_so() -> None:
    assert erased(MAKERS["forest"]).facts["monitor"]["policy"]["sha256"] == NO_MONITOR


def test_a_guarantee_that_became_weaker_is_told() -> None:
    model, rows, _ = erased(MAKERS["influence seeded"])
    before = InfluenceClassifier(l2=0.05).fit(*table()[:2]).guarantee_
    facts = collect_facts(
        guarantee_before=before,
        after=model,
        receipt=None,
        rows=rows,
        kind="erase",
        seconds=1.0,
        retrain_seconds=None,
        training=CALLER,
        removed=2,
        since_retrain=2,
    )
    assert "guarantee-of-the-version-before" in facts["notClaimed"]


def test_a_receipt_of_other_rows_is_refused() -> None:
    with pytest.raises(CertificateError, match="forget removed 2"):
        erased(MAKERS["naive"], removed=3)


def test_metric_of_test_rows() -> None:
    X, y, _ = table()
    model: Erased = erased(MAKERS["naive"])
    code, value = test_metric(model.model, X, y)
    shares = model.model.predict_proba(X)
    assert code == "true-label-probability"
    assert value == pytest.approx(np.mean(shares[np.arange(len(y)), y]))


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**22), 10**22))
def test_decimals_are_read_again(number: float) -> None:
    text = decimal(number)
    assert DECIMAL.fullmatch(text)
    assert len(text) <= 24
    assert type(number)(text) == number


@given(st.floats(min_value=1e-300, max_value=1e300), st.sampled_from(["up", "down", "nearest"]))
def test_figures_are_near_and_on_the_right_side(number: float, direction: Any) -> None:
    value = float(figure(number, direction))
    assert abs(value - number) <= number * 0.1
    assert (value - number) * {"up": 1, "down": -1, "nearest": 0}[direction] >= 0
    assert len(significant_digits(figure(number, direction))) <= 2


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**30])
def test_numbers_that_have_no_decimal(number: float) -> None:
    with pytest.raises(ValueError, match=r"as a decimal|too long"):
        decimal(number)


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_numbers_that_have_no_figure(number: float) -> None:
    with pytest.raises(ValueError, match="cannot be rounded"):
        figure(number, "up")


def test_parameters_are_codes_and_nested_by_name() -> None:
    inner = MLPClassifier(hidden_layer_sizes=(5, 3), alpha=1e-5, random_state=SEED)
    entries = describe_parameters(SISAClassifier(inner, n_shards=2, n_jobs=3, random_state=SEED))
    assert entries["estimator"] == "sklearn.neural_network._multilayer_perceptron.mlpclassifier"
    assert entries["estimator__hidden_layer_sizes.1"] == "3"
    assert entries["estimator__alpha"] == "1e-5"
    assert entries["estimator__shuffle"] is True
    assert not [name for name in entries if "random_state" in name or name == "n_jobs"]


def _someones_function(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("jane.doe@example.org", "text"),
        ("Free Text", "text"),
        ("x" * 41, "text"),
        (np.arange(3), "array"),
        ({"a": 1}, "collection"),
        (list(range(17)), "collection"),
        (_someones_function, "function"),
        (float("-inf"), "number"),
    ],
)
def test_what_is_no_code_is_hashed(value: Any, kind: str) -> None:
    text = describe_parameters(LogisticRegression(C=value))["C"]
    assert re.fullmatch(f"{kind}:[0-9a-f]{{64}}", str(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (np.float64(0.5), "0.5"),
        (np.True_, True),
        (float("inf"), "inf"),
        (10**30, "1" + "0" * 30),
        (LogisticRegression, "sklearn.linear_model._logistic.logisticregression"),
        (object(), "object:no-canonical-bytes"),
    ],
)
def test_values_of_parameters(value: Any, text: Any) -> None:
    assert describe_parameters(LogisticRegression(C=value))["C"] == text


def test_a_text_of_a_method_of_others_is_hashed() -> None:
    odd = replace(NaiveUnlearner.facts, method="My Own Method")
    assert to_code(odd.method).startswith("text:")


class ForeignCentroid(NearestCentroid):
    """A forgetting model from outside letheon."""

    __module__ = "elsewhere.models"


class ForeignScaler(StandardScaler):
    """A forgetting transformer from outside letheon."""

    __module__ = "elsewhere.models"


def test_foreign_parts_of_searches_and_column_transformers_are_seen() -> None:
    X, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    for model, is_ours in ((NearestCentroid(), True), (ForeignCentroid(), False)):
        search = ForgetSearchCV(model, {}, n_people=20, cv=2, random_state=0).fit(X, y)
        assert is_of_letheon(search) is is_ours
    for scaler, is_ours in ((StandardScaler(), True), (ForeignScaler(), False)):
        columns = ForgetColumnTransformer([("number", scaler, [0, 1])]).fit(X)
        assert is_of_letheon(columns) is is_ours
