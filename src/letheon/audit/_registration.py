"""What the log fixed before the erasure requests were known: the settings and the seed of a model.

``seed = HKDF-SHA256(key, beacon)``: the log contains a commitment to the key, and the first
checkpoint after it is the beacon, so the operator cannot choose a seed for its effect on the model.
The seed is fixed when a model is registered or retrained and stays the same until the next retrain
(`letheon.verifier.check_chain`). A seed that the operator chose and the settings are fixed by
commitments in the log from the registration; the bundle contains their salt. Ledgers of the first
versions have no commitment to the settings. The log is trusted if V1 passes.
"""

from typing import Any

from letheon.audit._bundle import AuditedModel, Commitment, LogFacts
from letheon.inner_estimator import fresh_copy
from letheon.ledger.certificates.claims import RETRAIN, describe_settings, list_seeds
from letheon.ledger.keys.derivation import (
    commit_to_key,
    commit_to_seeds,
    commit_to_settings,
    derive_training_seed,
)
from letheon.verifier import SignedStatement

_DERIVED = "hkdf-sha256-epoch-v1"
_CALLER = "caller-seed-v1"
_BEACON = "checkpoint:"


def has_fixed_settings(log: LogFacts, audited: AuditedModel) -> bool:
    """Return whether the registration of a model has a commitment to its settings."""
    return _read_commitment(log, audited) is not None


def _read_commitment(log: LogFacts, audited: AuditedModel) -> str | None:
    """Return the commitment to the settings, or None in a ledger of the first versions."""
    committed = [entry.event.get("settings") for entry in _list_registrations(log, audited)]
    return str(committed[0]) if committed and committed[0] is not None else None


def _list_registrations(log: LogFacts, audited: AuditedModel) -> list[Commitment]:
    """Return the events that register this model."""
    subject = audited.certificates[0].predicate["model"]["before"]["sha256"]
    return [entry for entry in log.commitments if entry.is_registration_of(subject)]


def find_settings_error(log: LogFacts, audited: AuditedModel, model: Any) -> str | None:
    """Return what is wrong with the registration of a model, or None.

    The settings must be those of the registration, which must come before the first batch: later,
    the rows to erase are known.
    """
    start = log.started.get(audited.certificates[0].predicate["erasure"]["batch"], 0)
    if all(entry.place >= start for entry in _list_registrations(log, audited)):
        return "the log does not register the model before its first batch started"
    committed = _read_commitment(log, audited)
    if committed is None:
        return None
    if commit_to_settings(audited.salt, describe_settings(model)) != committed:
        return "the settings of the model differ from those at its registration"
    return None


def find_seed_error(log: LogFacts, audited: AuditedModel, model: Any) -> str | None:
    """Return what is wrong with the seed of a model; None if it agrees with the certificate."""
    claimed = audited.newest.predicate["method"]["trainingRandomness"]
    training, retrain = audited.training, _last_retrain(audited)
    if any(training.get(name) != claimed[name] for name in ("rule", "beacon", "keyCommitment")):
        return "training.json and the certificate disagree about the seed"
    if claimed["rule"] == _CALLER:
        return _find_choice_error(log, audited, model, retrain)
    if claimed["rule"] != _DERIVED:
        return f"the seed rule {claimed['rule']} is unknown"
    return _find_beacon_error(log, audited, claimed, retrain) or _find_key_error(
        str(training["key"]), claimed, model
    )


def _find_key_error(key: str, claimed: dict[str, str], model: Any) -> str | None:
    try:
        secret = bytes.fromhex(key)
    except ValueError:
        return "the training key is not hexadecimal text"
    if commit_to_key(secret) != claimed["keyCommitment"]:
        return "the training key does not match its commitment"
    beacon = bytes.fromhex(claimed["beacon"].removeprefix(_BEACON))
    if not _has_seed(model, derive_training_seed(secret, beacon)):
        return "the seed is not the one derived from key and beacon"
    return None


def _last_retrain(audited: AuditedModel) -> SignedStatement | None:
    """Return the certificate of the newest retrain, or None if the model was never retrained.

    That retrain fixed the seed of the model.
    """
    names = [opened.predicate["method"]["name"] for opened in audited.certificates]
    if RETRAIN not in names:
        return None
    return audited.certificates[len(names) - 1 - names[::-1].index(RETRAIN)]


def _find_choice_error(
    log: LogFacts, audited: AuditedModel, model: Any, retrain: SignedStatement | None
) -> str | None:
    if audited.training["key"]:
        return "the operator chose the seed, but training.json has a training key"
    if retrain is not None:
        return "the operator chose the seed of a retrain, when the erased rows were known"
    claimed = audited.newest.predicate["method"]["trainingRandomness"]["keyCommitment"]
    is_fixed = has_fixed_settings(log, audited)
    if is_fixed and commit_to_seeds(audited.salt, list_seeds(model)) != claimed:
        return "the operator changed the seed after the registration"
    is_stated = "operator-chose-the-seed" in audited.newest.predicate["notClaimed"]
    return None if is_stated else "the operator chose the seed, and the certificate does not say so"


def _find_beacon_error(
    log: LogFacts, audited: AuditedModel, claimed: dict[str, str], retrain: SignedStatement | None
) -> str | None:
    """Return what is wrong with the commitment to the key or with the beacon, or None."""
    digest = claimed["keyCommitment"]
    matches = (entry for entry in log.commitments if entry.event["training"] == digest)
    first = next(matches, None)
    if first is None or not _is_intent(log, audited, first.event, retrain):
        return "the log has no commitment to the training key from before the training"
    after = [(size, text) for text, size in log.checkpoint_sizes.items() if size > first.place]
    if not after or f"{_BEACON}{min(after)[1]}" != claimed["beacon"]:
        return "the beacon is not the first checkpoint after the commitment to the training key"
    if retrain is not None:
        published = log.published.get(retrain.predicate["erasure"]["batch"], -1)
        if min(after)[0] > published:
            return "the beacon is later than the model that was trained with it"
    return None


def _is_intent(
    log: LogFacts, audited: AuditedModel, event: dict[str, Any], retrain: SignedStatement | None
) -> bool:
    """Return whether an event announces the training, or the retrain, of this model."""
    if retrain is not None:
        batch = retrain.predicate["erasure"]["batch"]
        return event.get("kind") == "sealed" and event.get("batch") == batch
    folders = [entry.event.get("model") for entry in _list_registrations(log, audited)]
    return event.get("kind") == "training" and [event.get("model")] == folders


def _has_seed(model: Any, seed: int) -> bool:
    """Return whether a model was trained with this seed.

    The steps of a pipeline must have the seeds that are derived from it.
    """
    if "random_state" in model.get_params(deep=False):
        return bool(model.seed_ == seed)
    return hasattr(model, "steps_") and _has_same_seeds(model, fresh_copy(model, seed))


def _has_same_seeds(fitted: Any, fresh: Any) -> bool:
    """Return whether the parts of a fitted pipeline have the seeds of those of an unfitted one."""
    if hasattr(fitted, "steps_"):
        steps, wanted = dict(fitted.steps_), dict(fresh.steps)
    elif hasattr(fitted, "transformers_"):
        steps = {name: step for name, step, _ in fitted.transformers_}
        wanted = {name: step for name, step, _ in fresh.transformers}
        wanted["remainder"] = fresh.remainder
    else:
        is_seeded = hasattr(fitted, "seed_") and "random_state" in fresh.get_params(deep=False)
        return not is_seeded or bool(fitted.seed_ == fresh.random_state)
    return steps.keys() <= wanted.keys() and all(
        _has_same_seeds(step, wanted[name]) for name, step in steps.items()
    )
