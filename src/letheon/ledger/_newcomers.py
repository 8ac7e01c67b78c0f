"""How a model comes into a ledger: fitted elsewhere, or trained here with a derived seed."""

import secrets
from typing import Any

from letheon.ledger._certify import take_beacon
from letheon.ledger._core import Core
from letheon.ledger._events import record
from letheon.ledger._facts import test_metric
from letheon.ledger._register import new_folder, register, require_kind
from letheon.ledger._seal import commitment
from letheon.ledger._training import fresh_fit, held_rows
from letheon.ledger._versions import Judged
from letheon.rows import Rows

__all__ = ["judged_by", "register_fitted", "register_trained"]

# What a certificate quotes when the data went into the model as they are.
_NO_PREPROCESSING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def judged_by(model: Any, test: tuple[Any, ...] | None, monitor: Any) -> Judged | None:
    """Return what versions of a model are judged by, with the figure of this one."""
    if monitor is not None:
        from letheon.ledger._monitoring import pack

        if test is not None:
            raise ValueError("a monitor has test rows of its own; give test or monitor, not both")
        if monitor.model is not model:
            raise ValueError("this monitor watches another model; register monitor.model")
        return Judged(pack(monitor), None, 0.0)
    if test is None:
        return None
    if not isinstance(test, tuple) or len(test) not in (2, 3):
        raise ValueError("test must be (X, y) or (X, y, ids)")
    rows = held_rows(test[0], test[1], _named(test))
    X, y = rows.part(0, len(rows))
    return Judged(None, rows, test_metric(model, X, y)[1])


def _named(test: tuple[Any, ...]) -> Any:
    """Return whose test rows they are; strangers get names that nobody else has."""
    if len(test) == 3:
        return test[2]
    return [f"test-row:{secrets.token_hex(8)}" for _ in range(len(test[1]))]


def register_fitted(
    core: Core,
    model: Any,
    rows: Rows,
    *,
    name: str,
    tenant: str,
    dataset: str | None,
    preprocessing: str | None,
    releases: str | None,
    judged: Judged | None,
    trusted: Any,
) -> int:
    """Register a model whose seed the caller chose; certificates say so."""
    # A seed may be as short as "0": what commits to it must not be a way to guess it.
    seed = str(getattr(model, "seed_", "")).encode()
    training = {
        "rule": "caller-seed-v1",
        "beacon": "none",
        "keyCommitment": commitment(secrets.token_bytes(32) + seed),
        "key": "",
    }
    with new_folder(core) as folder:
        return register(
            core,
            model,
            rows,
            name=name,
            tenant=tenant,
            dataset=dataset or name,
            preprocessing=preprocessing or _NO_PREPROCESSING,
            releases=releases,
            judged=judged,
            training=training,
            trusted=_names(trusted),
            folder=folder,
        )


def register_trained(
    core: Core,
    estimator: Any,
    rows: Rows,
    *,
    name: str,
    tenant: str,
    dataset: str | None,
    preprocessing: str | None,
    releases: str | None,
    test: tuple[Any, ...] | None,
    trusted: Any,
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
            model,
            rows,
            name=name,
            tenant=tenant,
            dataset=dataset or name,
            preprocessing=preprocessing or _NO_PREPROCESSING,
            releases=releases,
            judged=judged_by(model, test, None),
            training=training,
            trusted=_names(trusted),
            folder=folder,
        )


def _names(trusted: Any) -> tuple[str, ...]:
    """Return the qualified names of classes that the model may use."""
    if isinstance(trusted, str) or callable(trusted):
        raise TypeError(f"trusted={trusted!r} is a single value; give a list: trusted=[...]")
    return tuple(
        item if isinstance(item, str) else f"{item.__module__}.{item.__qualname__}"
        for item in trusted
    )
