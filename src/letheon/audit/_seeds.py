"""Whether the seed of a model was settled before anybody knew who would leave.

``seed = HKDF-SHA256(key, beacon)``: the commitment to the key stands in the log, and the first
checkpoint after it is the beacon, so that nobody could try seeds until a wanted model came out.
The seed is settled when a model is registered or retrained, and is the same until the next retrain
(`letheon.verifier.check_chain`). The log is believed where V1 holds.
"""

from typing import Any

from letheon.audit._reading import AuditedModel, LogFacts
from letheon.ledger.certificates.claims import RETRAIN
from letheon.ledger.keys.encryption import commitment, training_seed
from letheon.measures._copies import fresh_copy
from letheon.verifier import Opened

__all__ = ["wrong_seed"]

_DERIVED = "hkdf-sha256-epoch-v1"
_CALLER = "caller-seed-v1"
_BEACON = "checkpoint:"


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
