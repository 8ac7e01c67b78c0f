"""The signer refuses every claim that is stronger than the model's, and passes weaker ones."""

from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon import NaiveUnlearner
from letheon.exceptions import SignerRefusedError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.ledger.certificates.claims import (
    OWN_METHODS,
    _check_accounts,
    certificate_account,
    guarantee_section,
    is_of_letheon,
    make_claim,
    make_published_account,
    reject_beyond_method,
    reject_stronger_claims,
    weaker_releases,
)
from letheon.ledger.certificates.facts import reject_false_claims
from letheon.methods import METHODS
from tests.ledger.forgetters import (
    EVERY,
    MAKERS,
    NETS,
    Maker,
    erased,
    needs_torch,
    statement_of,
)

KINDS = ("empirical", "certified", "exact")
RELEASES = ("labels-only", "latest-only", "every-version")
STRONGER: dict[str, tuple[str, ...]] = {
    "kind": KINDS,
    "requests": ("oblivious", "adaptive"),
    "releases": RELEASES,
}


def check(model: Any, facts: dict[str, Any], kind: str = "erase") -> None:
    reject_stronger_claims(make_claim(model, kind), facts["method"], facts["guarantee"])


def refused(model: Any, facts: dict[str, Any], kind: str, match: str) -> None:
    with pytest.raises(SignerRefusedError, match=match):
        check(model, facts, kind)


@pytest.mark.parametrize("kind", ["erase", "retrain"])
@pytest.mark.parametrize("maker", EVERY)
def test_every_stronger_word_is_refused_and_every_weaker_one_passes(
    maker: Maker, kind: str
) -> None:
    model, _, facts = erased(maker, kind)
    check(model, facts, kind)
    for field, order in STRONGER.items():
        own = order.index(facts["guarantee"][field])
        for place, word in enumerate(order):
            changed = deepcopy(facts)
            changed["guarantee"][field] = word
            if place > own:
                refused(model, changed, kind, f"{field}=.*stronger")
            else:
                check(model, changed, kind)


@pytest.mark.parametrize("maker", EVERY)
def test_leaving_out_any_assumption_is_refused(maker: Maker) -> None:
    model, _, facts = erased(maker)
    for code in facts["guarantee"]["assumptions"]:
        changed = deepcopy(facts)
        changed["guarantee"]["assumptions"].remove(code)
        refused(model, changed, "erase", code)


@pytest.mark.parametrize("maker", EVERY)
def test_another_method_definition_or_rule_is_refused(maker: Maker) -> None:
    model, _, facts = erased(maker)
    for part, name, value in (
        ("method", "name", "retrain"),
        ("method", "definition", {"sha256": "00" * 32}),
        ("guarantee", "accounting", facts["guarantee"]["accounting"] | {"rule": "other"}),
    ):
        changed = deepcopy(facts)
        changed[part][name] = value
        refused(model, changed, "erase", "but the model has")


CERTIFIED = [
    "influence",
    "influence pure",
    "fisher",
    "descent",
    "descent 3.5",
    "pipeline certified",
]


@pytest.mark.parametrize("name", CERTIFIED)
def test_smaller_numbers_are_refused(name: str) -> None:
    model, _, facts = erased(MAKERS[name])
    own = model.guarantee_
    for field in ("epsilon", "delta"):
        value = getattr(own, field)
        for said in ([f"{value / 2:.3e}"] if value else []) + [None]:
            changed = deepcopy(facts)
            changed["guarantee"][field] = said
            refused(model, changed, "erase", f"{field}=.*stronger")
    changed = deepcopy(facts)
    changed["guarantee"] |= {"epsilon": "99", "delta": "0.5"}
    check(model, changed)


@pytest.mark.parametrize("name", CERTIFIED)
def test_a_prettier_account_is_refused(name: str) -> None:
    model, _, facts = erased(MAKERS[name])
    accounting = facts["guarantee"]["accounting"]
    for field, said in (
        ("spent", "0"),
        ("budget", str(float(accounting["budget"]) * 1.5)),
    ):
        changed = deepcopy(facts)
        changed["guarantee"]["accounting"][field] = said
        refused(model, changed, "erase", f"{field}=")
    changed = deepcopy(facts)
    del changed["guarantee"]["accounting"]["budget"]
    refused(model, changed, "erase", "budget=")


@pytest.mark.parametrize("name", CERTIFIED)
def test_certificates_leave_out_what_was_spent(name: str) -> None:
    model, _, facts = erased(MAKERS[name])
    stored = facts["guarantee"]["accounting"]
    facts["guarantee"]["accounting"] = certificate_account(stored)
    assert facts["guarantee"]["accounting"].keys() == stored.keys() - {"spent"}
    check(model, facts)


@pytest.mark.parametrize("spent", [1.0000001, float("inf"), float("nan")])
def test_an_overdrawn_account_is_not_signed(spent: float) -> None:
    own = replace(COUNTED, spent=1.0, budget=1.0)
    said = guarantee_section(make_claim(counting(own), "erase"), since_retrain=1)
    # The guarantee itself refuses such numbers; a model of another class may not.
    object.__setattr__(own, "spent", spent)
    claim = make_claim(counting(replace(COUNTED, spent=1.0, budget=1.0)), "erase")
    claim = claim._replace(guarantee=own)
    with pytest.raises(SignerRefusedError, match="more than its budget"):
        _check_accounts(claim, certificate_account(said["accounting"]))


def counting(own: Guarantee) -> Any:
    return _Odd(own, exact=False, certificate="certified")


@pytest.mark.parametrize("name", CERTIFIED)
def test_what_is_spent_is_rounded_up_and_within_the_budget(name: str) -> None:
    model, _, facts = erased(MAKERS[name])
    accounting = facts["guarantee"]["accounting"]
    own = model.guarantee_
    assert float(accounting["spent"]) >= own.spent
    assert own.budget <= float(accounting["budget"]) <= own.budget * 1.11
    assert float(accounting["spent"]) <= float(accounting["budget"])


@given(st.floats(0, 1), st.floats(1e-12, 1e12))
def test_what_is_spent_is_told_in_tenths_of_the_budget(share: float, budget: float) -> None:
    paid = min(share * budget, budget)
    own = replace(COUNTED, spent=paid, budget=budget)
    odd = _Odd(own, exact=False, certificate="certified")
    said = guarantee_section(make_claim(odd, "erase"), since_retrain=1)["accounting"]
    told = make_published_account(said)
    spent, limit = float(told["spent"]), float(told["budget"])
    assert paid <= float(said["spent"]) <= spent <= limit
    assert spent <= 1.11 * (float(said["spent"]) + limit / 10)
    assert told["budget"] == said["budget"]


@pytest.mark.parametrize("name", ["fisher", "descent", "descent 3.1"])
def test_where_nothing_adds_up_only_the_budget_is_told(name: str) -> None:
    model, _, facts = erased(MAKERS[name])
    facts["guarantee"]["accounting"] = make_published_account(facts["guarantee"]["accounting"])
    assert facts["guarantee"]["accounting"]["spent"] == facts["guarantee"]["accounting"]["budget"]
    check(model, facts)


def test_without_a_budget_nothing_is_told() -> None:
    accounting = erased(MAKERS["forest"]).facts["guarantee"]["accounting"]
    assert make_published_account(accounting) == accounting


class _Odd:
    """A method outside letheon, with facts and a guarantee from the test."""

    def __init__(self, guarantee: Guarantee, **facts: Any) -> None:
        self.guarantee_ = guarantee
        self.facts: MethodFacts = replace(NaiveUnlearner.facts, **facts)


EXACT = Guarantee(kind="exact", reference="none")
COUNTED = replace(EXACT, kind="certified", epsilon=1.0, delta=1e-5, spent=0.1, budget=1.0)


@pytest.mark.parametrize(
    ("own", "certificate", "kind"),
    [
        (EXACT, "exact", "exact"),
        (EXACT, "certified", "empirical"),
        (EXACT, "empirical", "empirical"),
        (COUNTED, "exact", "certified"),
        (COUNTED, "certified", "certified"),
        (COUNTED, "empirical", "empirical"),
    ],
)
def test_a_claim_is_no_stronger_than_the_method(
    own: Guarantee, certificate: str, kind: str
) -> None:
    odd = _Odd(own, exact=certificate == "exact", certificate=certificate)
    claimed = make_claim(odd, "erase").guarantee
    assert claimed.kind == kind
    assert (claimed.epsilon is None) == (kind != "certified")


def test_requests_and_releases_are_no_stronger_than_the_method() -> None:
    own = replace(EXACT, requests="adaptive", releases="every-version")
    claimed = make_claim(_Odd(own), "erase").guarantee
    assert (claimed.requests, claimed.releases) == ("oblivious", "latest-only")


def test_methods_of_others_are_certified_by_their_own_rule_and_name() -> None:
    odd = _Odd(COUNTED, method="Their Method", exact=False, certificate="certified")
    claim = make_claim(odd, "erase")
    assert claim.rule == "declared-by-method"
    assert claim.method.endswith("_odd")
    assert guarantee_section(claim, since_retrain=3)["accounting"]["deletionsSinceRetrain"] == 3


def test_a_retrain_mends_no_backbone() -> None:
    own = replace(EXACT, assumptions=("backbone-never-saw-the-rows", "noise-secret"))
    codes = make_claim(_Odd(own), "retrain").guarantee.assumptions
    assert "backbone-never-saw-the-rows" in codes
    assert "noise-secret" not in codes


@pytest.mark.parametrize("permitted", RELEASES)
@pytest.mark.parametrize("wanted", [*RELEASES, None])
def test_operators_may_publish_weaker_releases_only(permitted: str, wanted: str | None) -> None:
    if wanted is not None and RELEASES.index(wanted) > RELEASES.index(permitted):
        with pytest.raises(SignerRefusedError, match="stronger"):
            weaker_releases(permitted, wanted)
    else:
        assert weaker_releases(permitted, wanted) == (wanted or permitted)


def test_an_unknown_word_for_releases_is_refused() -> None:
    with pytest.raises(ValueError, match="is unknown"):
        weaker_releases("latest-only", "unknown")


@needs_torch
def test_names_of_letheons_methods_are_reserved() -> None:
    classes = [
        getattr(import_module(method.module), name)
        for method in METHODS
        for name in method.class_names
    ]
    assert {each.facts.method for each in classes} <= OWN_METHODS
    assert {"naive", "pipeline", "sums", "stable-preprocessing"} <= OWN_METHODS


@pytest.mark.parametrize("name", ["retrain", "naive", "dare"])
def test_a_class_of_others_gets_no_name_of_ours(name: str) -> None:
    facts = replace(NaiveUnlearner.facts, method=name)
    other = type("Other", (NaiveUnlearner,), {"facts": facts, "__module__": "outside.package"})
    model = deepcopy(erased(MAKERS["naive"]).model)
    model.__class__ = other
    claim = make_claim(model, "erase")
    assert claim.method == "outside.package.other"
    assert not is_of_letheon(model)
    assert is_of_letheon(erased(MAKERS["pipeline"]).model)


def newest(maker: Maker, kind: str = "erase") -> tuple[Any, dict[str, Any]]:
    """Return a model, and what an honest certificate says about it."""
    model, _, facts = erased(maker, kind)
    return model, deepcopy(statement_of(facts)["predicate"])


@pytest.mark.parametrize("kind", ["erase", "retrain"])
@pytest.mark.parametrize("maker", EVERY)
def test_an_honest_certificate_is_no_boast(maker: Maker, kind: str) -> None:
    model, claims = newest(maker, kind)
    claims["erasure"]["rows"] = 2
    # Certificates that were issued earlier have what was spent in them.
    for shown in (make_published_account, certificate_account):
        said = claims["guarantee"] | {"accounting": shown(claims["guarantee"]["accounting"])}
        reject_false_claims(model, claims | {"guarantee": said})
        reject_beyond_method(model, claims | {"guarantee": said})


@pytest.mark.parametrize("maker", EVERY)
def test_no_limit_can_be_left_out(maker: Maker) -> None:
    model, claims = newest(maker)
    claims["erasure"]["rows"] = 2
    codes = list(claims["notClaimed"])
    for code in codes:
        claims["notClaimed"] = [other for other in codes if other != code]
        if code in ("batch-of-one", "guarantee-of-the-version-before"):
            continue
        with pytest.raises(SignerRefusedError, match=f"must also list {code}"):
            reject_false_claims(model, claims)
    claims |= {"notClaimed": codes, "erasure": claims["erasure"] | {"rows": 1}}
    if "batch-of-one" not in codes:
        with pytest.raises(SignerRefusedError, match="must also list batch-of-one"):
            reject_false_claims(model, claims)


@pytest.mark.parametrize("maker", EVERY)
def test_no_figure_is_proved_that_is_not(maker: Maker) -> None:
    model, claims = newest(maker)
    claims["erasure"]["rows"] = 2
    for name, honest in claims["measurements"].items():
        claims["measurements"][name] = honest | {"basis": "by-proof", "value": "0.5"}
        with pytest.raises(SignerRefusedError, match=f"measurements.{name} is stated as proved"):
            reject_false_claims(model, claims)
        claims["measurements"][name] = honest


@needs_torch
def test_equal_but_for_rounding_is_not_zero_by_proof() -> None:
    for kind in ("erase", "retrain"):
        facts = erased(NETS["sisa net rounding"], kind).facts
        metrics = {name: each["metric"] for name, each in facts["measurements"].items()}
        assert {metrics[name] for name in ("effectiveness", "consistency", "certifiability")} == {
            "not-measured"
        }
        assert "consistency-not-measured" in facts["notClaimed"]
