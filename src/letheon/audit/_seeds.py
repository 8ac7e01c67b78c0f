"""Whether the seed of a model was settled before anybody knew who would leave.

``seed = HKDF-SHA256(key, beacon)``: the commitment to the key stands in the log before the
checkpoint that is the beacon, so that nobody could try seeds until a wanted model came out.
"""

from typing import Any

from letheon.audit._reading import AuditedModel, Bundle
from letheon.ledger._seal import commitment, training_seed
from letheon.measures._copies import fresh_copy

__all__ = ["wrong_seed"]

_DERIVED = "hkdf-sha256-epoch-v1"
_CALLER = "caller-seed-v1"
_BEACON = "checkpoint:"


def wrong_seed(bundle: Bundle, audited: AuditedModel, model: Any) -> str | None:
    """Return what is wrong with the seed of a model; None if it is as certified."""
    claimed = audited.newest.predicate["method"]["trainingRandomness"]
    said = audited.training
    if any(said.get(name) != claimed[name] for name in ("rule", "beacon", "keyCommitment")):
        return "training.json says something else about the seed than the certificate"
    if claimed["rule"] == _CALLER:
        chosen = "operator-chose-the-seed" in audited.newest.predicate["notClaimed"]
        if said["key"]:
            return "the caller chose the seed, and yet there is a training key"
        return None if chosen else "the caller chose the seed, and the certificate hides it"
    if claimed["rule"] != _DERIVED:
        return f"the rule {claimed['rule']} for the seed is not known here"
    return _wrong_derivation(bundle, claimed, str(said["key"]), model)


def _wrong_derivation(bundle: Bundle, claimed: dict[str, str], key: str, model: Any) -> str | None:
    try:
        secret = bytes.fromhex(key)
    except ValueError:
        return "the training key is no hexadecimal text"
    if commitment(secret) != claimed["keyCommitment"]:
        return "the training key is not the one that was committed to"
    beacon = claimed["beacon"].removeprefix(_BEACON)
    size = bundle.checkpoint_sizes.get(beacon)
    if size is None:
        return "the beacon is no checkpoint of this ledger"
    first = _first_place(bundle, claimed["keyCommitment"])
    if first is None or first >= size:
        return "the commitment to the training key is not in the log before its beacon"
    if not _has_seed(model, training_seed(secret, bytes.fromhex(beacon))):
        return "the seed is not the one that key and beacon give"
    return None


def _first_place(bundle: Bundle, wanted: str) -> int | None:
    for index, event in enumerate(bundle.events()):
        if event.get("training") == wanted:
            return index
    return None


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
