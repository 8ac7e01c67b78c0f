"""The levels that look at one model of a bundle: V2 on its data, V4 on its bytes."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from letheon import state
from letheon.audit._reading import AuditedModel, LogFacts
from letheon.audit._rederive import check_rederivation
from letheon.audit._result import LevelResult
from letheon.audit._seeds import wrong_seed
from letheon.audit._structure import beside_the_model
from letheon.data import Rows
from letheon.exceptions import SignerRefusedError, UntrustedClassError
from letheon.ledger.certificates.claims import RETRAIN, claim_of, refuse_beyond_method
from letheon.ledger.certificates.execution import describe, replay_of
from letheon.ledger.certificates.facts import method_parameters, refuse_boasts
from letheon.ledger.models.commitment import tree_of

__all__ = [
    "Rebuilt",
    "check_data",
    "check_model",
    "is_made_here",
    "rebuilt",
    "unlike_certified",
]

# What decides whether bytes must agree here.
_PLACE = ("lockfile", "python", "kernel")


class Rebuilt(NamedTuple):
    """A model of a bundle that was built, or the verdict on why it was not."""

    model: Any
    refusal: LevelResult | None


def rebuilt(audited: AuditedModel, level: str, trusted: Iterable[Any] = ()) -> Rebuilt:
    """Build a model from its file, after its hash was compared with the newest certificate."""
    if not audited.is_subject:
        reason = f"the file is not the one that certificate {audited.newest.sequence} is about"
        return Rebuilt(None, LevelResult(level, audited.name, "fail", reason))
    try:
        return Rebuilt(audited.build(trusted), None)
    except UntrustedClassError as error:
        reason = f"the model needs classes that you have not trusted: {error}"
        return Rebuilt(None, LevelResult(level, audited.name, "skipped", reason))
    except Exception as error:  # noqa: BLE001 (a made-up state may raise anything)
        reason = f"the file holds no model that can be read: {type(error).__name__}"
        return Rebuilt(None, LevelResult(level, audited.name, "fail", reason))


def check_data(audited: AuditedModel) -> LevelResult:
    """V2 on the rows: rows and salts in the bundle give the root that was certified."""
    data = audited.newest.predicate["dataset"]
    try:
        root = tree_of(audited.rows, audited.vault, data["slots"]).root.hex()
        tidy = is_tidy(audited.rows)
    except Exception as error:  # noqa: BLE001 (made-up rows may raise anything)
        reason = f"rows and salts make no commitment: {error}"
        return LevelResult("V2", audited.name, "fail", reason[:300])
    if root != data["rootAfter"]:
        reason = "the rows in the bundle are not those that the certificate commits to"
        return LevelResult("V2", audited.name, "fail", reason)
    if not tidy:
        reason = "the table has more in it than its rows: categories or values that no row has"
        return LevelResult("V2", audited.name, "fail", reason)
    found = len(audited.rows)
    if found != data["liveAfter"]:
        reason = f"{found} rows, and the certificate says {data['liveAfter']}"
        return LevelResult("V2", audited.name, "fail", reason)
    reason = f"the {found} rows in the bundle are those that the certificate commits to"
    return LevelResult("V2", audited.name, "pass", reason, {"rows": found})


def is_tidy(rows: Rows) -> bool:
    """Whether a table has nothing but its rows: what only others had went with them."""
    again = rows.take(np.arange(len(rows)))
    return state.encode(again) == state.encode(rows)


def is_made_here(audited: AuditedModel) -> bool:
    """Whether the certificate names the libraries and the kernel that are here."""
    here, there = describe(), audited.newest.predicate["execution"]
    return all(here[key] == there[key] for key in _PLACE)


def check_model(log: LogFacts, audited: AuditedModel, model: Any) -> tuple[LevelResult, Any]:
    """V4: settings and seed as certified, and the bytes of a fresh fit on the remaining rows.

    Returns the verdict and the re-derived model, None where there is none.
    """
    name = audited.name
    wrong = unlike_certified(audited, model) or wrong_seed(log, audited, model)
    if wrong:
        return LevelResult("V4", name, "fail", wrong), None
    content, same_place = audited.content, is_made_here(audited)
    if model.guarantee_.kind != "exact":
        beside = beside_the_model(model, audited.rows, content=content, same_place=same_place)
        if beside.wrong:
            return LevelResult("V4", name, "fail", beside.wrong), None
        reason = beside.undecided or (
            "the method draws secret noise or is approximate, so no two fits are equal; the file "
            "holds the remaining rows, numbers of a fit on them, and nothing else"
        )
        return LevelResult("V4", name, "skipped", reason), None
    found, rederived = check_rederivation(
        model, audited.rows, content=content, name=name, same_place=same_place
    )
    unused = log.unused_training_keys
    return (
        replace(found, details={**found.details, "unusedTrainingKeys": unused}) if unused else found
    ), rederived


def unlike_certified(audited: AuditedModel, model: Any) -> str | None:
    """Return what is wrong with the settings: they must be those of every certificate.

    They were fixed before anybody asked to leave, so nothing of an erased row can be in them.
    """
    for certificate in audited.certificates:
        method = certificate.predicate["method"]
        try:
            expected = method_parameters(model, method["name"])
        except Exception as error:  # noqa: BLE001 (an untrusted model may raise anything)
            return f"the settings of the model cannot be read: {type(error).__name__}"
        if method["parameters"] != expected:
            return f"settings are not those of certificate {certificate.sequence}"
    try:
        for certificate in audited.certificates:
            refuse_beyond_method(model, certificate.predicate)
        refuse_boasts(model, audited.newest.predicate)
    except SignerRefusedError as error:
        return f"the certificate claims more than the model permits: {error}"
    return _weaker_than_model(model, audited.newest.predicate)


def _weaker_than_model(model: Any, claims: Mapping[str, Any]) -> str | None:
    """Return where a certificate claims less than the ledger would have: it chooses the levels.

    An exact model that is called empirical would not be compared with a fresh fit, and bytes that
    must agree everywhere would be excused by a weaker replay.
    """
    is_retrain = claims["method"]["name"] == RETRAIN
    kind = claim_of(model, RETRAIN if is_retrain else "erase").guarantee.kind
    said = {"kind": claims["guarantee"]["kind"], "replay": claims["execution"]["replay"]}
    for name, value in {"kind": kind, "replay": replay_of(model)}.items():
        if said[name] != value:
            return f"the certificate says {name} {said[name]}, and the model gives {value}"
    return None
