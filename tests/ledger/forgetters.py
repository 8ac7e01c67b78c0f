"""One small model of every family of letheon, and the facts of a removal from it."""

import atexit
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.tree import DecisionTreeRegressor

from letheon import (
    DaREForestClassifier,
    DaREForestRegressor,
    DataIndependent,
    DeltaGradClassifier,
    DescentToDeleteClassifier,
    FisherClassifier,
    ForgetPipeline,
    InfluenceClassifier,
    InfluenceRegressor,
    NaiveUnlearner,
    SISAClassifier,
    SISARegressor,
)
from letheon.data import Rows
from letheon.guarantee import Guarantee
from letheon.ledger.certificates.facts import collect_facts
from letheon.ledger.models.examine import copy_rows
from letheon.receipt import Receipt

SEED = 20_261_115
HAS_TORCH = find_spec("torch") is not None
CALLER: dict[str, str] = {
    "rule": "caller-seed-v1",
    "beacon": "none",
    "keyCommitment": "5e" * 32,
    "key": "",
}
EPOCH: dict[str, str] = CALLER | {
    "rule": "hkdf-sha256-epoch-v1",
    "beacon": f"checkpoint:{'be' * 32}",
    "key": "training-of-this-model",
}

Maker = Callable[[], Any]


class Erased(NamedTuple):
    """A model after a removal, with what was computed about it."""

    model: Any
    rows: Rows
    facts: dict[str, Any]


def table(n: int = 60) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Return rows whose values and ids are easy to look for in a certificate."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    X = np.clip(rng.normal(size=(n, 3)) * 0.2 + y[:, None] * 0.5, -1, 1) / 2
    return X, y, [f"person-{each:05d}-secret" for each in range(n)]


def _descent(**settings: Any) -> Any:
    return DescentToDeleteClassifier(**({"l2": 0.05, "random_state": SEED} | settings))


def _by_theorem(**settings: Any) -> Any:
    given = {"l2": 0.5, "stop": "theorem", "rows": "clip", "row_norm": 1.5, "sigma": None}
    return _descent(**(given | {"iterations": 100} | settings))


def _halved(X: Any) -> Any:
    return X / 2


MAKERS: dict[str, Maker] = {
    "naive": lambda: NaiveUnlearner(LogisticRegression(), random_state=SEED),
    "naive regressor": lambda: NaiveUnlearner(DecisionTreeRegressor(), random_state=SEED),
    "sisa": lambda: SISAClassifier(
        SGDClassifier(loss="log_loss"), n_shards=2, n_slices=2, random_state=SEED
    ),
    "sisa regressor": lambda: SISARegressor(DecisionTreeRegressor(), n_shards=2, random_state=SEED),
    "forest": lambda: DaREForestClassifier(n_estimators=3, random_state=SEED),
    "forest regressor": lambda: DaREForestRegressor(n_estimators=3, random_state=SEED),
    "influence": lambda: InfluenceClassifier(l2=0.05, random_state=SEED),
    "influence pure": lambda: InfluenceClassifier(l2=0.05, delta=0.0, random_state=SEED),
    "influence bare": lambda: InfluenceClassifier(l2=0.05, sigma=0.0, random_state=SEED),
    "influence seeded": lambda: InfluenceClassifier(l2=0.05, noise_seed=SEED, random_state=SEED),
    "influence regressor": lambda: InfluenceRegressor(l2=0.05, random_state=SEED),
    "fisher": lambda: FisherClassifier(l2=0.05, random_state=SEED),
    "fisher secret": lambda: FisherClassifier(
        l2=0.05, state="secret", covariance="isotropic", random_state=SEED
    ),
    "deltagrad": lambda: DeltaGradClassifier(n_steps=30, random_state=SEED),
    "deltagrad noise": lambda: DeltaGradClassifier(n_steps=30, sigma=0.1, random_state=SEED),
    "descent": _descent,
    "descent published": lambda: _descent(state="published"),
    "descent pure": lambda: _descent(delta=0.0),
    "descent seeded": lambda: _descent(noise_seed=SEED),
    "descent 3.1": _by_theorem,
    "descent 3.2": lambda: _by_theorem(state="published"),
    "descent 3.4": lambda: _by_theorem(variant="regularized-strong"),
    "descent 3.5": lambda: _by_theorem(variant="regularized-weak"),
    "descent parts": lambda: _descent(variant="distributed"),
    "descent parts by theorem": lambda: _by_theorem(variant="distributed"),
    "pipeline": lambda: ForgetPipeline(
        [
            ("scale", NaiveUnlearner(StandardScaler(), random_state=SEED)),
            ("model", DaREForestClassifier(n_estimators=3, random_state=SEED)),
        ]
    ),
    "pipeline of the forest": lambda: ForgetPipeline(
        [("model", DaREForestClassifier(n_estimators=3, random_state=SEED))]
    ),
    "pipeline certified": lambda: ForgetPipeline(
        [
            ("halve", DataIndependent(FunctionTransformer(_halved))),
            ("model", InfluenceClassifier(l2=0.05, random_state=SEED)),
        ]
    ),
}


def _net(name: str, **settings: Any) -> Any:
    import letheon
    from letheon.deep import MLP

    tiny = {"module": MLP(widths=(3,)), "epochs": 2, "device": "cpu", "random_state": SEED}
    return getattr(letheon, name)(**(tiny | settings))


def _head(**settings: Any) -> Any:
    from letheon import CertifiedHeadClassifier
    from letheon.deep import MLP, Backbone

    backbone = Backbone(MLP(widths=(4,)), arguments=((3,), 4))
    head = InfluenceClassifier(l2=0.05, rows="normalize", row_norm=1.0, random_state=SEED)
    return CertifiedHeadClassifier(backbone, settings.get("head", head), device="cpu")


NETS: dict[str, Maker] = {
    "sisa net": lambda: _net("SISANetClassifier", n_shards=2),
    "sisa net rounding": lambda: _net("SISANetClassifier", n_shards=2, deterministic=False),
    "sisa net options": lambda: _net(
        "SISANetClassifier", n_shards=2, augment="mixup", validation_fraction=0.2
    ),
    "deepobliviate": lambda: _net("DeepObliviateClassifier", n_blocks=2),
    "deltagrad net": lambda: _net("DeltaGradNetClassifier"),
    "fisher net": lambda: _net("FisherNetClassifier"),
    "head": _head,
    "head descent": lambda: _head(head=_descent(rows="normalize", row_norm=1.0)),
}
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
EVERY = [
    *(pytest.param(maker, id=name) for name, maker in MAKERS.items()),
    *(pytest.param(maker, id=name, marks=needs_torch) for name, maker in NETS.items()),
]


def erased(maker: Maker, kind: str = "erase", **more: Any) -> Erased:
    """Return a model that forgot two people, and the facts of it.

    Models are made once for all tests, which only read them.
    """
    model, before, receipt = _removed(maker, kind)
    X, y, ids = table()
    rows = copy_rows(X[2:], y[2:], ids[2:])
    given: dict[str, Any] = {
        "seconds": 0.012345,
        "retrain_seconds": 1.0,
        "training": CALLER,
        "removed": 2,
        "since_retrain": 2,
    }
    facts = collect_facts(
        guarantee_before=before,
        after=model,
        receipt=receipt,
        rows=rows,
        kind=kind,
        **given | more,
    )
    return Erased(model, rows, facts)


@cache
def _removed(maker: Maker, kind: str) -> tuple[Any, Guarantee, Receipt | None]:
    X, y, ids = table()
    model = maker().fit(X, y, ids=ids)
    before = model.guarantee_
    if kind == "retrain":
        return maker().fit(X[2:], y[2:], ids=ids[2:]), before, None
    return model, before, model.forget(ids[:2])


# The compiled core reports forests that outlive the interpreter.
atexit.register(_removed.cache_clear)


def statement_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a whole statement around facts; what only a database knows is made up."""
    some = {"sha256": "ab" * 32}
    parts = {name: facts[name] for name in ("method", "execution", "guarantee", "measurements")}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "model@1", "digest": some}],
        "predicateType": "urn:letheon:attestation:unlearning:v2",
        "predicate": {
            "ledger": {
                "id": "test",
                "sequence": 1,
                "previousCertificate": "genesis",
                "checkpointBefore": some,
            },
            "model": {
                "id": "model",
                "format": "letheon-v1",
                "before": some,
                "blinded": True,
                "predictor": some,
            },
            "dataset": {
                "id": "data",
                "scheme": "salted-slot-merkle-v1",
                "rootBefore": "cd" * 32,
                "rootAfter": "ef" * 32,
                "slots": 64,
                "liveAfter": facts["live"],
                "transitionProof": some,
                "preprocessing": some,
            },
            "erasure": {
                "batch": "01" * 32,
                "rows": facts["rows"],
                "requestsRoot": "23" * 32,
                "grounds": ["gdpr.art17.1.b"],
            },
            **parts,
            "monitor": facts["monitor"] | {"lastRetrainSequence": 0},
            "notClaimed": facts["notClaimed"],
            "times": {
                "oldestReceivedOn": "2026-11-02",
                "earliestDueOn": "2026-12-02",
                "appliedAt": "2026-11-09T03:00:00Z",
                "certifiedAt": "2026-11-09T03:00:05Z",
            },
        },
    }
