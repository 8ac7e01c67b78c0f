"""Pipelines of every kind of step in one ledger: erased, certified, purged and derived again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from letheon import DaREForestClassifier, ForgetPipeline, ForgetSearchCV, SISAClassifier
from letheon.audit import audit
from letheon.ledger import Ledger
from letheon.preprocessing import (
    KeyedSample,
    OneHotEncoder,
    QuantileBinner,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
    TfidfVectorizer,
)
from letheon.sums import LinearDiscriminantAnalysis, MultinomialNB, RandomFeatures, RidgeClassifier
from letheon.table_pipeline import make_table_pipeline
from tests.pipelines.people import LEAVING, PEOPLE, N, make_pipeline, mixed_frame, target

FRAME = mixed_frame()
WORDS = ["red", "blue", "green", "grey", "black"]
TABLES: dict[str, Any] = {
    "numbers": np.nan_to_num(FRAME[["age", "income", "visits"]].to_numpy(float)),
    "categories": FRAME[["city", "plan"]],
    "objects": FRAME[["city", "plan"]].to_numpy(object),
    "texts": np.array([" ".join(WORDS[i % 5 :] + WORDS[: i % 3]) for i in range(N)], object),
    "mixed": FRAME,
}
FOREST = DaREForestClassifier(n_estimators=2, max_depth=3)
SISA = SISAClassifier(LogisticRegression(), n_shards=2)
CASES: dict[str, tuple[str, Any]] = {
    "text": ("texts", [TfidfVectorizer(), MultinomialNB()]),
    "objects": ("objects", [OneHotEncoder(sparse_output=False), RidgeClassifier()]),
    "sample": ("numbers", [StandardScaler(), KeyedSample(PCA(2), n_people=50), FOREST]),
    "target": ("categories", [TargetEncoder(), FOREST]),
    "bins": ("numbers", [QuantileBinner(), FOREST]),
    "lda": ("numbers", [RobustScaler(), LinearDiscriminantAnalysis()]),
    "features": ("numbers", [StandardScaler(), RandomFeatures(n_components=4), RidgeClassifier()]),
    "sisa": ("mixed", make_table_pipeline(SISA, FRAME)),
    "search": (
        "mixed",
        ForgetSearchCV(make_pipeline("dare"), {"model__max_depth": [2, 3]}, n_people=60, cv=2),
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_every_kind_of_pipeline_is_audited(kind: str, tmp_path: Path) -> None:
    name, steps = CASES[kind]
    model, X, y = steps, TABLES[name], target(FRAME)
    if isinstance(steps, list):
        model = ForgetPipeline([(f"s{number}", step) for number, step in enumerate(steps)])
    with Ledger.create(tmp_path / "home", name="kinds") as ledger:
        ledger.models.register(model.fit(X, y, ids=PEOPLE), X, y, ids=PEOPLE, name="fitted")
        ledger.models.train(model, X, y, ids=PEOPLE, name="trained")
        for served in ("fitted", "trained"):
            ledger.requests.submit(LEAVING, model=served, verified=True)
            step = ledger.run_once(force=True, model=served)[0]
            assert step.what == "applied", step
        report = audit(ledger.export(tmp_path / "b", tier="auditor"), key=ledger.public_key)
    assert [str(result) for result in report if result.verdict != "pass"] == []
    assert sum(result.level == "V4" for result in report) == 2
