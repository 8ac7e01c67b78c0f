"""Honest ledgers with models of every kind, from which forgeries are made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from letheon import (
    DaREForestClassifier,
    DeltaGradClassifier,
    DescentToDeleteClassifier,
    FisherClassifier,
    ForgetPipeline,
    InfluenceClassifier,
    NaiveUnlearner,
    SISAClassifier,
)
from letheon.ledger import Ledger
from tests.audit.people import table

N = 60


IDS = np.arange(N)


MODELS: dict[str, Callable[[], Any]] = {
    "logit": lambda: NaiveUnlearner(LogisticRegression(), random_state=1),
    "sisa": lambda: SISAClassifier(LogisticRegression(), n_shards=2, random_state=1),
    "bayes": lambda: NaiveUnlearner(GaussianNB(), random_state=1),
    "scaled": lambda: NaiveUnlearner(
        make_pipeline(StandardScaler(), LogisticRegression()), random_state=1
    ),
    "steps": lambda: ForgetPipeline(
        [
            ("scale", NaiveUnlearner(StandardScaler(), random_state=1)),
            ("model", NaiveUnlearner(LogisticRegression(), random_state=1)),
        ]
    ),
    "tree": lambda: NaiveUnlearner(DecisionTreeClassifier(max_depth=3), random_state=1),
    "forest": lambda: DaREForestClassifier(n_estimators=3, random_state=1),
    "newton": lambda: InfluenceClassifier(l2=0.05),
    "fisher": lambda: FisherClassifier(l2=0.05),
    "descent": lambda: DescentToDeleteClassifier(l2=0.05),
    "deltagrad": lambda: DeltaGradClassifier(random_state=1),
}


def new_ledger(folder: Path, *kinds: str) -> Ledger:
    X, y = table(N)
    ledger = Ledger.create(folder, name="audited")
    for kind in kinds:
        ledger.models.register(MODELS[kind]().fit(X, y, ids=IDS), X, y, ids=IDS, name=kind)
    return ledger


class HonestModel(NamedTuple):
    """A ledger of three models and four certificates, and what it exported."""

    ledger: Ledger
    bundle: Path
    public: Path
    older: Path
    other: Path


def place(bundle: Path, model: str, name: str = "") -> Path:
    return bundle / "models" / "default" / model / name
