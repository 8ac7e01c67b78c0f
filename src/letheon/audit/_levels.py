"""The levels that look at one model of a bundle: V2 on its data, V4 on its bytes.

V4 also asks whether the seed was settled before anybody knew who would leave:
``seed = HKDF-SHA256(key, beacon)``. The commitment to the key stands in the log, and the first
checkpoint after it is the beacon, so that no seed could be chosen for the model it gives. The seed
is settled when a model is registered or retrained, and is the same until the next retrain
(`letheon.verifier.check_chain`). The log is believed where V1 holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from letheon import state
from letheon.audit._reading import AuditedModel, LogFacts
from letheon.audit._rederive import beside_the_model, check_rederivation
from letheon.audit._result import LevelResult
from letheon.data import Rows
from letheon.exceptions import SignerRefusedError, UntrustedClassError
from letheon.inner import fresh_copy
from letheon.ledger.certificates.claims import RETRAIN, claim_of, refuse_beyond_method
from letheon.ledger.certificates.facts import describe, method_parameters, refuse_boasts, replay_of
from letheon.ledger.keys.keyring import commitment, training_seed
from letheon.ledger.models.commitment import tree_of
from letheon.verifier import Opened

_DERIVED = "hkdf-sha256-epoch-v1"
_CALLER = "caller-seed-v1"
_BEACON = "checkpoint:"
# What decides whether bytes must agree here.
_PLACE = ("lockfile", "python", "kernel")


def wrong_seed(log: LogFacts, audited: AuditedModel, model: Any) -> str | None:
    """Return what is wrong with the seed of a model; None if it is as certified."""
    claimed = audited.newest.predicate["method"]["trainingRandomness"]
    said, retrain = audited.training, _last_retrain(audited)
    if any(said.get(name) != claimed[name] for name in ("rule", "beacon", "keyCommitment")):
        return "training.json says something else about the seed than the certificate"
    if claimed["rule"] == _CALLER:
        return _wrong_choice(audited, str(said["key"]), retrain)
    if claimed["rule"] != _DERIVED:
        return f"the rule {claimed['rule']} for the seed is not known here"
    return _wrong_beacon(log, audited, claimed, retrain) or _wrong_key(
        str(said["key"]), claimed, model
    )


def _wrong_key(key: str, claimed: dict[str, str], model: Any) -> str | None:
    try:
        secret = bytes.fromhex(key)
    except ValueError:
        return "the training key is no hexadecimal text"
    if commitment(secret) != claimed["keyCommitment"]:
        return "the training key is not the one that was committed to"
    beacon = bytes.fromhex(claimed["beacon"].removeprefix(_BEACON))
    if not _has_seed(model, training_seed(secret, beacon)):
        return "the seed is not the one that key and beacon give"
    return None


def _last_retrain(audited: AuditedModel) -> Opened | None:
    """Return the certificate of the newest retrain, which settled the seed, if there is one."""
    names = [one.predicate["method"]["name"] for one in audited.certificates]
    if RETRAIN not in names:
        return None
    return audited.certificates[len(names) - 1 - names[::-1].index(RETRAIN)]


def _wrong_choice(audited: AuditedModel, key: str, retrain: Opened | None) -> str | None:
    if key:
        return "the caller chose the seed, and yet there is a training key"
    if retrain is not None:
        return "the operator chose the seed of a retrain, when it was known who left"
    chosen = "operator-chose-the-seed" in audited.newest.predicate["notClaimed"]
    return None if chosen else "the caller chose the seed, and the certificate hides it"


def _wrong_beacon(
    log: LogFacts, audited: AuditedModel, claimed: dict[str, str], retrain: Opened | None
) -> str | None:
    """Return what is wrong with the commitment or the beacon: there was one of each."""
    wanted = claimed["keyCommitment"]
    first = next((one for one in log.commitments if one.event["training"] == wanted), None)
    if first is None or not _is_intent(log, audited, first.event, retrain):
        return "the commitment to the training key was not logged when this model was to be trained"
    after = [(size, text) for text, size in log.checkpoint_sizes.items() if size > first.place]
    if not after or f"{_BEACON}{min(after)[1]}" != claimed["beacon"]:
        return "the beacon is not the first checkpoint after the commitment to the training key"
    if retrain is not None:
        published = log.published.get(retrain.predicate["erasure"]["batch"], -1)
        if min(after)[0] > published:
            return "the beacon is later than the model that was trained with it"
    return None


def _is_intent(
    log: LogFacts, audited: AuditedModel, event: dict[str, Any], retrain: Opened | None
) -> bool:
    """Whether an event says that this model is to be trained, or retrained."""
    if retrain is not None:
        batch = retrain.predicate["erasure"]["batch"]
        return event.get("kind") == "sealed" and event.get("batch") == batch
    registered = audited.certificates[0].predicate["model"]["before"]["sha256"]
    folders = [one.event.get("model") for one in log.commitments if one.is_of(registered)]
    return event.get("kind") == "training" and [event.get("model")] == folders


def _has_seed(model: Any, seed: int) -> bool:
    """Whether a model was trained with a seed; a pipeline has one per step, derived from it."""
    if "random_state" in model.get_params(deep=False):
        return bool(model.seed_ == seed)
    steps = getattr(model, "steps_", None)
    if steps is None:
        return False
    twin = fresh_copy(model, seed)
    return all(
        _has_seed(fitted, fresh.random_state)
        for (_, fitted), (_, fresh) in zip(steps, twin.steps, strict=True)
        if hasattr(fitted, "seed_") and hasattr(fresh, "random_state")
    )


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
    data, fail = (
        audited.newest.predicate["dataset"],
        partial(LevelResult, "V2", audited.name, "fail"),
    )
    try:
        root = tree_of(audited.rows, audited.vault, data["slots"]).root.hex()
        tidy = is_tidy(audited.rows)
    except Exception as error:  # noqa: BLE001 (made-up rows may raise anything)
        return fail(f"rows and salts make no commitment: {error}"[:300])
    if root != data["rootAfter"]:
        return fail("the rows in the bundle are not those that the certificate commits to")
    if not tidy:
        return fail("the table has more in it than its rows: categories or values that no row has")
    n_rows = len(audited.rows)
    if n_rows != data["liveAfter"]:
        return fail(f"{n_rows} rows, and the certificate says {data['liveAfter']}")
    reason = f"the {n_rows} rows in the bundle are those that the certificate commits to"
    return LevelResult("V2", audited.name, "pass", reason, {"rows": n_rows})


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
