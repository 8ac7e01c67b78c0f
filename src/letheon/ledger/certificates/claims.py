"""Claims of a certificate: what is permitted, rejection of stronger claims, and their format.

The signer inspects the model itself: the facts of its method, its own guarantee and its definition
text limit what a certificate may say. Operators may publish a weaker claim about releases, never a
stronger one.

Parameters are codes, decimals and booleans. Certificates contain no free text. A text that is not a
short code is written as the digest of its canonical bytes, and so is a function, an array or any
other object.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np

from letheon import state
from letheon.base import decisive_parameters
from letheon.definitions import EARLIER_TEXTS
from letheon.exceptions import SignerRefusedError, StateError
from letheon.guarantee import DECLARED, KINDS, REQUESTS, Guarantee, MethodFacts
from letheon.methods import METHODS
from letheon.naive import NaiveUnlearner
from letheon.search import ForgetSearchCV

CODE = re.compile(r"[a-z0-9][a-z0-9._:@/+-]{0,127}")
_LONGEST_NUMBER, _LONGEST_TEXT, _LONGEST_LIST = 24, 40, 16
_ROUNDINGS = {"up": ROUND_CEILING, "down": ROUND_FLOOR, "nearest": ROUND_HALF_EVEN}
# A seed of the noise would let any reader remove the noise.
_SECRET = frozenset({"random_state", "noise_seed"})

# From the weakest to the strongest.
_ORDERS = {
    "kind": tuple(reversed(KINDS)),
    "requests": REQUESTS,
    "releases": ("labels-only", "latest-only", "every-version"),
}
RETRAIN = "retrain"
_RETRAIN_RULE = "retrain-fresh-fit-v1"
_RETRAIN_REFERENCE = "Mercuri et al. 2022, Definition 3: a fresh fit on the remaining rows"
_RETRAIN_ASSUMPTIONS = ("seed-independent-of-requests", "same-libraries-and-cpu-kernel")
# Assumptions that a fresh fit does not remove.
_STILL_ASSUMED = ("backbone-never-saw-the-rows", "equal-but-for-rounding")
_RULES = {"exact": "exact-history-independent-v1", "empirical": "none-empirical"}
# Names with a published definition; a class from outside letheon may not use them.
OWN_METHODS = frozenset(method.name for method in METHODS)


def decimal(number: float) -> str:
    """Return a number as decimal text that converts back to the same number.

    Raises
    ------
    ValueError
        The number is infinite or NaN, or an integer of more than 24 characters.
    """
    if not math.isfinite(number):
        raise ValueError(f"{number} cannot be written as a decimal; expected a finite number")
    text = str(number)
    if not isinstance(number, int):
        # Without plus sign, leading zeros of the exponent and a fraction of zero.
        text, _, exponent = repr(float(number) + 0.0).partition("e")
        text = text.removesuffix(".0") + (f"e{int(exponent)}" if exponent else "")
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(
            f"an integer of {len(text)} characters is too long for a certificate; expected at "
            "most 24"
        )
    return text


def figure(number: float, direction: Literal["up", "down", "nearest"], *, digits: int = 2) -> str:
    """Return a number as text with at most `digits` significant digits, rounded up or down.

    An upper bound is rounded up and a lower bound down, so that the figure does not claim more.

    Examples
    --------
    >>> figure(0.01131, "up"), figure(212.7, "down")
    ('0.012', '210')
    """
    if not math.isfinite(number):
        raise ValueError(f"{number} cannot be rounded; expected a finite number")
    context = Context(prec=digits, rounding=_ROUNDINGS[direction], Emin=-400, Emax=400)
    return decimal(float(context.create_decimal(Decimal(repr(float(number))))))


def is_code(text: str) -> bool:
    """Return whether a text is a code: short, lower-case and without spaces."""
    return CODE.fullmatch(text) is not None


def to_code(value: str, *, longest: int = _LONGEST_TEXT) -> str:
    """Return the text if it is a code of at most `longest` characters, otherwise its digest."""
    # An e-mail address has the form of a code, too.
    is_plain = is_code(value) and len(value) <= longest and "@" not in value
    return value if is_plain else _hash_as("text", value)


def class_code(value: Any) -> str:
    """Return the module and the name of a class, or of the class of an object, as a code."""
    kind = value if isinstance(value, type) else type(value)
    return to_code(state.tag_of(kind).lower(), longest=128)


def describe_parameters(model: Any, prefix: str = "") -> dict[str, str | bool]:
    """Return the parameters that affect what an estimator learns, by name.

    Names of nested parameters are joined with ``__``.

    A nested estimator is listed by the name of its class, followed by its own parameters. Seeds and
    parameters that never affect a result (`n_jobs`, `verbose`, paths) are omitted.
    """
    entries: dict[str, str | bool] = {}
    for name, value in decisive_parameters(model):
        if name not in _SECRET:
            entries.update(_iter_entries(f"{prefix}{name}", value))
    return entries


def describe_settings(model: Any) -> dict[str, Any]:
    """Return what an operator must fix at the registration: class, parameters and inner seeds.

    A retrain draws a new seed for the model, or for the steps of a pipeline. Seeds inside a model
    with a seed of its own stay.
    """
    has_seed = "random_state" in model.get_params(deep=False)
    inner = [entry for entry in _list_given_seeds(model) if "__" in entry] if has_seed else []
    return {"class": class_code(model), "parameters": describe_parameters(model), "seeds": inner}


def list_seeds(model: Any) -> list[str]:
    """Return the seeds of a fitted model and of its steps: those given, and those of the fits."""
    return _list_given_seeds(model) + _list_fitted_seeds(model, "")


def _list_given_seeds(model: Any) -> list[str]:
    params = sorted(model.get_params(deep=True).items())
    return [
        f"{name}={int(value)}"
        for name, value in params
        if name.rpartition("__")[2] in _SECRET and value is not None
    ]


def _list_fitted_seeds(model: Any, path: str) -> list[str]:
    parts: Any = getattr(model, "steps_", None) or getattr(model, "transformers_", ())
    inside = [_list_fitted_seeds(part[1], f"{path}{part[0]}/") for part in parts]
    own = [f"{path}={model.seed_}"] if hasattr(model, "seed_") else []
    return sum(inside, own)


def _iter_entries(name: str, value: Any) -> Iterator[tuple[str, str | bool]]:
    if hasattr(value, "get_params") and not isinstance(value, type):
        yield name, class_code(value)
        yield from describe_parameters(value, f"{name}__").items()
    elif isinstance(value, list | tuple) and len(value) <= _LONGEST_LIST:
        yield name, f"list:{len(value)}"
        for place, part in enumerate(value):
            yield from _iter_entries(f"{name}.{place}", part)
    else:
        yield name, _format_scalar(value)


def _format_scalar(value: Any) -> str | bool:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return "none" if value is None else value
    if isinstance(value, int | float):
        try:
            return decimal(value)
        except ValueError:
            text = str(value)
            return text if is_code(text) else _hash_as("number", text)
    return to_code(value) if isinstance(value, str) else _digest_value(value)


def _digest_value(value: Any) -> str:
    if isinstance(value, type):
        return class_code(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return _hash_as("function", state.tag_of(value))
    kind = "collection" if isinstance(value, Mapping | Sequence) else "object"
    try:
        digest = state.digest(value)
    except StateError:
        digest = "no-canonical-bytes"
    return f"{'array' if isinstance(value, np.ndarray) else kind}:{digest}"


def _hash_as(kind: str, text: str) -> str:
    return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()}"


class Claim(NamedTuple):
    """The strongest claim that a certificate may make about one model.

    Attributes
    ----------
    method : str
        Code of the method.
    definition : str
        SHA-256 of the definition text.
    guarantee : Guarantee
        The model's own guarantee, limited to what the facts of its method permit.
    rule : str
        Code of the rule by which the budget is spent.
    """

    method: str
    definition: str
    guarantee: Guarantee
    rule: str


def make_claim(model: Any, kind: str) -> Claim:
    """Return the strongest permitted claim about a model after a removal or retraining (`kind`).

    A newly retrained model is a fresh fit on the remaining rows, whatever its method. That is an
    exact removal by the definition of naive retraining.
    """
    facts: MethodFacts = model.facts
    own: Guarantee = model.guarantee_
    if kind == RETRAIN:
        naive = NaiveUnlearner.facts
        still_assumed = [code for code in own.assumptions if code in _STILL_ASSUMED]
        guarantee = Guarantee(
            kind="exact",
            reference=_RETRAIN_REFERENCE,
            requests=naive.requests,
            releases=naive.releases,
            assumptions=(*_RETRAIN_ASSUMPTIONS, *still_assumed),
            residual_state=own.residual_state,
            tuning=own.tuning,
        )
        return Claim(RETRAIN, naive.definition_digest, guarantee, _RETRAIN_RULE)
    guarantee = _cap_guarantee(own, facts)
    rule = _RULES.get(guarantee.kind)
    if rule is None:
        counted = get_accounted_part(model)
        rule = counted.facts.accounting_code(counted)
    return Claim(_method_code(model), facts.definition_digest, guarantee, rule)


def _cap_guarantee(own: Guarantee, facts: MethodFacts) -> Guarantee:
    """Return the model's own guarantee, with each field limited to what its method permits."""
    kind = min(own.kind, facts.certificate, key=_ORDERS["kind"].index)
    if kind == "certified" and own.epsilon is None:
        kind = "empirical"  # without epsilon there is no bound
    if kind != own.kind:
        own = replace(own, kind="empirical", epsilon=None, delta=None, spent=None, budget=None)
    return replace(
        own,
        kind=kind,
        requests=min(own.requests, facts.requests, key=REQUESTS.index),
        releases=min(own.releases, facts.releases, key=_ORDERS["releases"].index),
    )


def is_of_letheon(model: Any) -> bool:
    """Return whether the model's class, and that of every forgetting part, is part of letheon."""
    parts = [part[1] for part in getattr(model, "steps_", getattr(model, "transformers_", ()))]
    if isinstance(model, ForgetSearchCV):
        parts = [model.model_]
    steps = [part for part in parts if hasattr(part, "forget")]
    return _is_own_class(model) and all(map(is_of_letheon, steps))


def _is_own_class(model: Any) -> bool:
    return type(model).__module__.partition(".")[0] == "letheon"


def _method_code(model: Any) -> str:
    """Return the name of a model's method, or its class name if that is reserved or not a code."""
    name: str = model.facts.method
    is_taken = name == RETRAIN or (name in OWN_METHODS and not _is_own_class(model))
    return class_code(model) if is_taken or to_code(name) != name else name


def get_accounted_part(model: Any) -> Any:
    """Return the part of a model that has the budget: its head, last step, choice, or itself."""
    if hasattr(model, "head_"):
        return get_accounted_part(model.head_)
    if isinstance(model, ForgetSearchCV):
        return get_accounted_part(model.model_)
    return get_accounted_part(model.steps_[-1][1]) if hasattr(model, "steps_") else model


def guarantee_section(claim: Claim, *, since_retrain: int) -> dict[str, Any]:
    """Return the `guarantee` section of the facts, with the account for the ledger's planning."""
    guarantee = claim.guarantee
    accounting = {
        name: figure(value, "up")
        for name in ("spent", "budget")
        if (value := getattr(guarantee, name)) is not None
    }
    section: dict[str, Any] = {
        "kind": guarantee.kind,
        "requests": guarantee.requests,
        "releases": guarantee.releases,
        "assumptions": [to_code(code) for code in guarantee.assumptions],
        "accounting": {"rule": claim.rule, "deletionsSinceRetrain": since_retrain} | accounting,
    }
    if guarantee.epsilon is not None and guarantee.delta is not None:
        section |= {"epsilon": decimal(guarantee.epsilon), "delta": decimal(guarantee.delta)}
    return section


def adds_up(rule: str) -> bool:
    """Return whether the spent budget grows with each request under this accounting rule."""
    return rule in _rules_that_add_up()


@cache
def _rules_that_add_up() -> frozenset[str]:
    certified = [method for method in METHODS if method.bound not in (None, "inner")]
    classes = [getattr(import_module(method.module), method.class_names[0]) for method in certified]
    return frozenset({DECLARED, *(each.facts.accounting for each in classes if each.facts.adds_up)})


def certificate_account(accounting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the account for a certificate: rule, budget and rows, without the spent budget.

    The spent budget depends on the removed rows, and requesters receive certificates. The signer
    checks that the spent budget is within the limit.
    """
    return {name: value for name, value in accounting.items() if name != "spent"}


def make_published_account(accounting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the account that operators see, with limited precision.

    After a removal of one row, the exact spent budget could be used to test guesses of that row. If
    it accumulates over requests, it is rounded up to a tenth of the budget. If every request is
    proved on its own, only the limit matters, so the whole budget is shown as spent.
    """
    if not {"spent", "budget"} <= set(accounting):
        return dict(accounting)
    spent, budget = float(accounting["spent"]), float(accounting["budget"])
    if not adds_up(accounting["rule"]) or budget <= 0.0:
        return {**accounting, "spent": accounting["budget"]}
    tenths = min(max(math.ceil(10 * spent / budget), 1), 10)
    return {**accounting, "spent": figure(min(max(spent, budget * tenths / 10), budget), "up")}


def weaker_releases(permitted: str, requested: str | None) -> str:
    """Return the claim about releases to publish.

    This is the requested claim, which must not be stronger than the permitted claim. If None is
    requested, it is the permitted claim.

    Raises
    ------
    ValueError
        The requested claim is unknown.
    SignerRefusedError
        The method's proof does not cover observers of that kind.
    """
    if requested is None:
        return permitted
    if requested not in _ORDERS["releases"]:
        raise ValueError(
            f"releases={requested!r} is unknown; expected one of {_ORDERS['releases']}"
        )
    _require_not_stronger("releases", requested, permitted)
    return requested


def reject_stronger_claims(
    claim: Claim, method: Mapping[str, Any], stated: Mapping[str, Any]
) -> None:
    """Raise `SignerRefusedError` if a statement claims more than the model permits.

    Parameters
    ----------
    claim : Claim
        The claim that `make_claim` derived from the model itself.
    method, stated : mapping
        The `method` and `guarantee` parts of the statement.

    Raises
    ------
    SignerRefusedError
        The message names the field, its value, and what is permitted.
    """
    _require_equal("method.name", method["name"], claim.method)
    definition = method["definition"]["sha256"]
    if definition not in EARLIER_TEXTS.get(claim.method, ()):
        _require_equal("method.definition", definition, claim.definition)
    for name in _ORDERS:
        _require_not_stronger(name, stated[name], getattr(claim.guarantee, name))
    for name in ("epsilon", "delta"):
        _require_not_smaller(name, stated.get(name), getattr(claim.guarantee, name))
    missing = {to_code(code) for code in claim.guarantee.assumptions} - set(stated["assumptions"])
    if missing:
        raise SignerRefusedError(
            f"the statement omits assumptions of the guarantee: {', '.join(sorted(missing))}"
        )
    _check_accounts(claim, stated["accounting"])


def reject_beyond_method(model: Any, claims: Mapping[str, Any]) -> None:
    """Raise `SignerRefusedError` if an older certificate claims more than the method permits.

    What a model itself permits changes from version to version; what its method permits does not.

    Raises
    ------
    SignerRefusedError
        The message names the field, its value, and what is permitted.
    """
    stated, is_retrain = claims["guarantee"], claims["method"]["name"] == RETRAIN
    facts: MethodFacts = NaiveUnlearner.facts if is_retrain else model.facts
    if not is_retrain:
        _require_equal("method.name", claims["method"]["name"], _method_code(model))
    permitted = (facts.certificate, facts.requests, facts.releases)
    for name, strongest in zip(_ORDERS, permitted, strict=True):
        _require_not_stronger(name, stated[name], strongest)


def _check_accounts(claim: Claim, accounting: Mapping[str, Any]) -> None:
    """Raise `SignerRefusedError` if an account exceeds its budget or the model's own account."""
    own = claim.guarantee
    _require_equal("accounting.rule", accounting["rule"], claim.rule)
    if "spent" in accounting:  # in certificates that were issued earlier
        _require_not_smaller("spent", accounting["spent"], own.spent)
    if own.budget is None:
        return
    most = figure(own.budget, "up")
    if own.spent is not None and not own.spent <= own.budget:
        raise SignerRefusedError(
            f"the model has spent {own.spent!r}, which is more than its budget {most}"
        )
    if "budget" not in accounting or float(accounting["budget"]) > float(most):
        raise SignerRefusedError(
            f"budget={accounting.get('budget')!r} is missing or larger than {most}, the budget "
            "that the noise of the model covers"
        )


def _require_equal(name: str, stated: str, permitted: str) -> None:
    if stated != permitted:
        raise SignerRefusedError(
            f"the statement has {name}={stated!r}, but the model has {permitted!r}"
        )


def _require_not_stronger(name: str, stated: str, permitted: str) -> None:
    order = _ORDERS[name]
    if order.index(stated) > order.index(permitted):
        raise SignerRefusedError(
            f"{name}={stated!r} is stronger than {permitted!r}, the strongest that the method and "
            "the guarantee of this model permit"
        )


def _require_not_smaller(name: str, stated: str | None, permitted: float | None) -> None:
    """Raise `SignerRefusedError` if a number is missing or smaller than the model's own."""
    if permitted is not None and (stated is None or float(stated) < permitted):
        raise SignerRefusedError(
            f"{name}={stated!r} is stronger than the model's own {permitted!r}"
        )
