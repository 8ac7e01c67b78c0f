"""How a model comes into a ledger: fitted elsewhere, from files, or trained here."""

import secrets
from typing import Any

from letheon import state
from letheon.data import Rows
from letheon.ledger.certificates.certify import take_beacon
from letheon.ledger.core import Core
from letheon.ledger.db.events import record
from letheon.ledger.keys.encryption import commitment
from letheon.ledger.models.examine import Examined, examine_model, judge, require_kind, stranger_ids
from letheon.ledger.models.register import Registration, new_folder, register
from letheon.ledger.models.training import fresh_fit, held_rows
from letheon.ledger.models.versions import Judged

__all__ = ["class_names", "judged_by", "register_fitted", "register_trained"]


def judged_by(model: Any, test: tuple[Any, ...] | None, monitor: Any) -> Judged | None:
    """Return what versions of a model are judged by, with the figure of this one."""
    if monitor is not None:
        from letheon.ledger.models.monitoring import pack

        if test is not None:
            raise ValueError("a monitor has test rows of its own; give test or monitor, not both")
        if monitor.model is not model:
            raise ValueError("this monitor watches another model; register monitor.model")
        return Judged(pack(monitor), None, 0.0)
    if test is None:
        return None
    if not isinstance(test, tuple) or len(test) not in (2, 3):
        raise ValueError("test must be (X, y) or (X, y, ids)")
    ids = test[2] if len(test) == 3 else stranger_ids(len(test[1]))
    return judge(model, held_rows(test[0], test[1], ids))


def register_fitted(
    core: Core, examined: Examined, rows: Rows, registration: Registration, *, judged: Judged | None
) -> int:
    """Register a model whose seed the caller chose; certificates say so."""
    # A seed may be as short as "0": what commits to it must not be a way to guess it.
    training = {
        "rule": "caller-seed-v1",
        "beacon": "none",
        "keyCommitment": commitment(secrets.token_bytes(32) + examined.seed.encode()),
        "key": "",
    }
    with new_folder(core) as folder:
        return register(
            core, examined, rows, registration, judged=judged, training=training, folder=folder
        )


def register_trained(
    core: Core,
    estimator: Any,
    rows: Rows,
    registration: Registration,
    *,
    test: tuple[Any, ...] | None,
) -> int:
    """Commit to a key, take a checkpoint, train with the seed that both give, and register."""
    require_kind(estimator)
    with new_folder(core) as folder:
        key = core.keys.new_key("training", label=folder)
        with core.database.transaction() as conn:
            body = {"model": folder, "training": core.keys.commitment(key)}
            record(conn, "training", body, at=core.clock())
        beacon = take_beacon(core, core.keys.commitment(key))
        seed = core.keys.derive_seed(key, bytes.fromhex(beacon))
        model = fresh_fit(estimator, rows, seed=seed).model
        training = {
            "rule": "hkdf-sha256-epoch-v1",
            "beacon": f"checkpoint:{beacon}",
            "keyCommitment": core.keys.commitment(key),
            "key": key,
        }
        return register(
            core,
            examine_model(model, rows, registration.trusted),
            rows,
            registration,
            judged=judged_by(model, test, None),
            training=training,
            folder=folder,
        )


def class_names(trusted: Any) -> tuple[str, ...]:
    """Return the qualified names of classes that the model may use."""
    if isinstance(trusted, str) or callable(trusted):
        raise TypeError(f"trusted={trusted!r} is a single value; give a list: trusted=[...]")
    return tuple(item if isinstance(item, str) else state.tag_of(item) for item in trusted)
