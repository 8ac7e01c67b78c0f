"""What a certificate may claim, and the refusal of anything stronger.

The signer looks at the model itself: its method's facts, its own guarantee and its definition text
are the most that a certificate about it may say. Operators may publish a weaker claim about
releases, never a stronger one.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from math import ceil
from typing import Any, NamedTuple

from letheon.exceptions import SignerRefusedError
from letheon.guarantee import DECLARED, KINDS, REQUESTS, Guarantee, MethodFacts
from letheon.ledger.certificates.parameters import class_code, code_of, decimal, figure
from letheon.methods import METHODS
from letheon.naive import NaiveUnlearner

# From the weakest to the strongest.
_KINDS = tuple(reversed(KINDS))
_RELEASES = ("labels-only", "latest-only", "every-version")
_ORDERS = {"kind": _KINDS, "requests": REQUESTS, "releases": _RELEASES}

RETRAIN = "retrain"
_RETRAIN_RULE = "retrain-fresh-fit-v1"
_RETRAIN_REFERENCE = "Mercuri et al. 2022, Definition 3: a fresh fit on the remaining rows"
_RETRAIN_ASSUMPTIONS = ("seed-independent-of-requests", "same-libraries-and-cpu-kernel")
# What a fresh fit does not mend.
_STILL_ASSUMED = ("backbone-never-saw-the-rows", "equal-but-for-rounding")
_EXACT_RULE = "exact-history-independent-v1"
_EMPIRICAL_RULE = "none-empirical"
# Names that readers know the definition of; a class from outside letheon may not use them.
OWN_METHODS = frozenset(method.name for method in METHODS)


class Claim(NamedTuple):
    """The most that a certificate may say about one model.

    Attributes
    ----------
    method : str
        Name of the method, a code.
    definition : str
        SHA-256 of the definition text.
    guarantee : Guarantee
        The weaker of the model's own guarantee and what its method's facts permit.
    rule : str
        Code of the rule by which the budget is counted.
    """

    method: str
    definition: str
    guarantee: Guarantee
    rule: str


def claim_of(model: Any, kind: str) -> Claim:
    """Return the strongest claim about a model after a removal (`erase`) or a `retrain`.

    A model that was just retrained is a fresh fit on the remaining rows, whatever its method: an
    exact removal by the definition of naive retraining.
    """
    facts: MethodFacts = model.facts
    own: Guarantee = model.guarantee_
    if kind == RETRAIN:
        naive = NaiveUnlearner.facts
        return Claim(RETRAIN, naive.definition_digest, _retrained(own), _RETRAIN_RULE)
    guarantee = _capped(own, facts)
    return Claim(
        _method_code(model), facts.definition_digest, guarantee, _rule_of(model, guarantee)
    )


def is_of_letheon(model: Any) -> bool:
    """Whether the method is one of letheon's, in every step of a pipeline."""
    steps = [step for _, step in getattr(model, "steps_", ()) if hasattr(step, "forget")]
    own = type(model).__module__.partition(".")[0] == "letheon"
    return own and all(map(is_of_letheon, steps))


def _method_code(model: Any) -> str:
    """Return the name of a method; that of its class where the name is taken or is no code."""
    name: str = model.facts.method
    is_own = type(model).__module__.partition(".")[0] == "letheon"
    is_taken = name == RETRAIN or (name in OWN_METHODS and not is_own)
    return class_code(model) if is_taken or code_of(name) != name else name


def _retrained(own: Guarantee) -> Guarantee:
    kept = tuple(code for code in own.assumptions if code in _STILL_ASSUMED)
    return Guarantee(
        kind="exact",
        reference=_RETRAIN_REFERENCE,
        requests=NaiveUnlearner.facts.requests,
        releases=NaiveUnlearner.facts.releases,
        assumptions=(*_RETRAIN_ASSUMPTIONS, *kept),
        residual_state=own.residual_state,
        tuning=own.tuning,
    )


def _capped(own: Guarantee, facts: MethodFacts) -> Guarantee:
    """Return the weaker of what a model says and what its method permits, in every respect."""
    kind = min(own.kind, facts.certificate, key=_KINDS.index)
    if kind == "certified" and own.epsilon is None:
        kind = "empirical"  # a bound without epsilon is none
    return replace(
        own if kind == own.kind else _uncounted(own),
        kind=kind,
        requests=min(own.requests, facts.requests, key=REQUESTS.index),
        releases=min(own.releases, facts.releases, key=_RELEASES.index),
    )


def _uncounted(own: Guarantee) -> Guarantee:
    """Return the empirical claim of the same assumptions."""
    return replace(own, kind="empirical", epsilon=None, delta=None, spent=None, budget=None)


def _rule_of(model: Any, guarantee: Guarantee) -> str:
    if guarantee.kind != "certified":
        return _EXACT_RULE if guarantee.kind == "exact" else _EMPIRICAL_RULE
    inner = counted_part(model)
    code: str = inner.facts.accounting_code(inner)
    return code


def counted_part(model: Any) -> Any:
    """Return the part of a model whose budget is counted: its head, or its last step."""
    if hasattr(model, "head_"):
        return counted_part(model.head_)
    return counted_part(model.steps_[-1][1]) if hasattr(model, "steps_") else model


def guarantee_section(claim: Claim, *, since_retrain: int) -> dict[str, Any]:
    """Return the `guarantee` of a certificate, with an account for the ledger's own planning."""
    guarantee = claim.guarantee
    section: dict[str, Any] = {
        "kind": guarantee.kind,
        "requests": guarantee.requests,
        "releases": guarantee.releases,
        "assumptions": [code_of(code) for code in guarantee.assumptions],
        "accounting": {"rule": claim.rule, "deletionsSinceRetrain": since_retrain},
    }
    if guarantee.epsilon is not None and guarantee.delta is not None:
        section |= {"epsilon": decimal(guarantee.epsilon), "delta": decimal(guarantee.delta)}
    for name in ("spent", "budget"):
        value = getattr(guarantee, name)
        if value is not None:
            section["accounting"][name] = figure(value, "up")
    return section


def adds_up(rule: str) -> bool:
    """Return whether what is spent grows from request to request by this rule."""
    return rule in _rules_that_add_up()


@cache
def _rules_that_add_up() -> frozenset[str]:
    certified = [each for each in METHODS if each.bound not in (None, "inner")]
    classes = [getattr(import_module(each.module), each.class_names[0]) for each in certified]
    return frozenset({DECLARED, *(one.facts.accounting for one in classes if one.facts.adds_up)})


def certificate_account(accounting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the account of a certificate: rule, budget and rows, and not what was spent.

    What was spent depends on the rows that left, and certificates go to requesters. That it is
    within the budget is checked before a certificate is signed.
    """
    return {name: value for name, value in accounting.items() if name != "spent"}


def published_account(accounting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the account as operators see it: no finer than they need.

    After a removal of one row, what is spent tells candidates for that row apart. Where it adds up
    over requests it is rounded up to a tenth of the budget. Where every request is proved by itself
    all that matters is that it is within the budget, so it is given as the budget.
    """
    if not {"spent", "budget"} <= set(accounting):
        return dict(accounting)
    spent, budget = float(accounting["spent"]), float(accounting["budget"])
    if not adds_up(accounting["rule"]) or budget <= 0.0:
        return {**accounting, "spent": accounting["budget"]}
    tenths = min(max(ceil(10 * spent / budget), 1), 10)
    return {**accounting, "spent": figure(min(max(spent, budget * tenths / 10), budget), "up")}


def weaker_releases(permitted: str, wanted: str | None) -> str:
    """Return what an operator publishes about releases: the wanted claim, if it is no stronger.

    Raises
    ------
    SignerRefusedError
        The method's proof does not cover observers of that kind.
    """
    if wanted is None:
        return permitted
    if wanted not in _RELEASES:
        raise SignerRefusedError(f"releases={wanted!r} is not one of {_RELEASES}")
    _refuse_higher("releases", wanted, permitted)
    return wanted


def refuse_stronger(claim: Claim, method: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    """Refuse a statement that claims more than the model and its method permit.

    Parameters
    ----------
    claim : Claim
        What `claim_of` found in the model itself.
    method, said : mapping
        The `method` and `guarantee` parts of the statement.

    Raises
    ------
    SignerRefusedError
        The text says which field, what it says, and what is permitted.
    """
    _refuse_other("method.name", method["name"], claim.method)
    _refuse_other("method.definition", method["definition"]["sha256"], claim.definition)
    for name in _ORDERS:
        _refuse_higher(name, said[name], getattr(claim.guarantee, name))
    for name in ("epsilon", "delta"):
        _refuse_smaller(name, said.get(name), getattr(claim.guarantee, name))
    missing = {code_of(code) for code in claim.guarantee.assumptions} - set(said["assumptions"])
    if missing:
        raise SignerRefusedError(f"the claim leaves out assumptions: {', '.join(sorted(missing))}")
    _refuse_accounts(claim, said["accounting"])


def refuse_beyond_method(model: Any, claims: Mapping[str, Any]) -> None:
    """Refuse an older certificate that claims more than any model of the method may.

    What a model itself permits changes from version to version; what its method permits does not.

    Raises
    ------
    SignerRefusedError
        The text says which field, what it says, and what is permitted.
    """
    said, is_retrain = claims["guarantee"], claims["method"]["name"] == RETRAIN
    facts: MethodFacts = NaiveUnlearner.facts if is_retrain else model.facts
    if not is_retrain:
        _refuse_other("method.name", claims["method"]["name"], _method_code(model))
    _refuse_higher("kind", said["kind"], facts.certificate)
    _refuse_higher("requests", said["requests"], facts.requests)
    _refuse_higher("releases", said["releases"], facts.releases)


def _refuse_accounts(claim: Claim, accounting: Mapping[str, Any]) -> None:
    """Refuse an account that is overdrawn, or prettier than the model's own."""
    _refuse_other("accounting.rule", accounting["rule"], claim.rule)
    if "spent" in accounting:  # in certificates that were issued earlier
        _refuse_smaller("spent", accounting["spent"], claim.guarantee.spent)
    if claim.guarantee.budget is not None:
        own, most = claim.guarantee.spent, figure(claim.guarantee.budget, "up")
        if own is not None and not own <= claim.guarantee.budget:
            raise SignerRefusedError(f"spent={own!r} is more than the budget {most}")
        if "budget" not in accounting or float(accounting["budget"]) > float(most):
            raise SignerRefusedError(
                f"budget={accounting.get('budget')!r} is more than the {most} that the noise hides"
            )


def _refuse_other(name: str, said: str, permitted: str) -> None:
    if said != permitted:
        raise SignerRefusedError(f"{name}={said!r}, but the model is of {permitted!r}")


def _refuse_higher(name: str, said: str, permitted: str) -> None:
    order = _ORDERS[name]
    if order.index(said) > order.index(permitted):
        raise SignerRefusedError(
            f"{name}={said!r} is stronger than {permitted!r}, which is all that the method and "
            "this model's guarantee permit"
        )


def _refuse_smaller(name: str, said: str | None, permitted: float | None) -> None:
    """Refuse a number that is less than the model's own, or left out."""
    if permitted is not None and (said is None or float(said) < permitted):
        raise SignerRefusedError(f"{name}={said!r} is stronger than the model's own {permitted!r}")
