"""Texts of an evaluation, and its accepted arguments."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_matrix, csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import fbeta_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import letheon
from letheon import Evaluation, NaiveUnlearner
from letheon.evaluation import SAME, LearningProblem
from letheon.evaluation._problem import describe_function, list_settings
from letheon.exceptions import CannotForgetError
from letheon.measures import Measure
from tests.evaluation.stubs import SIMPLE, TEST, StubModel, X, Y, evaluate


def strict(text: str) -> Any:
    """Read JSON as a browser does."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_infinite_numbers_are_written_as_json_and_read_back(tmp_path: Path) -> None:
    evaluation = evaluate(StubModel(), (X, Y), 2, seeds=1, title="inf", **SIMPLE)
    endless = Measure(
        name="KL consistency",
        value=math.inf,
        low=-math.inf,
        high=math.inf,
        n=1,
        better="lower",
        basis="measured",
    )
    trial = replace(evaluation.trials[0], measures={SAME: {"KL consistency": endless}})
    evaluation = replace(evaluation, measures={SAME: {"KL consistency": endless}}, trials=(trial,))
    text = evaluation.to_json(tmp_path / "found.json")
    written = strict((tmp_path / "found.json").read_text())
    assert written == strict(text)
    assert written["measures"][SAME]["KL consistency"]["low"] == "-inf"
    for plain in (written, evaluation.to_dict()):
        again = Evaluation.from_dict(plain)
        assert again == evaluation
        assert again.title == "inf"


def test_settings_tell_no_paths_and_no_addresses() -> None:
    inner = make_pipeline(FunctionTransformer(np.log1p), LogisticRegression(C=math.inf, n_jobs=3))
    sisa = letheon.SISAClassifier(inner, n_shards=3, checkpoint_dir="/home/alice/states")
    text = json.dumps(list_settings(sisa), allow_nan=False)
    assert "alice" not in text
    assert " at 0x" not in text
    assert "n_jobs" not in text
    assert "log1p" in text
    assert "C='inf'" in text
    assert list_settings(sisa)["n_shards"] == 3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (partial(fbeta_score, beta=2), "fbeta_score(beta=2)"),
        (partial(partial(max, 1), key=abs), "max(1, key=abs)"),
        (len, "len"),
        (object(), "object"),
    ],
)
def test_a_function_is_described_by_its_name(value: Any, words: str) -> None:
    assert describe_function(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, len], "[1, len]"),
        ({"a": max}, "{a: max}"),
        (Path("/home/alice"), None),
        (np.float64(0.5), 0.5),
        (object(), "object"),
        (np.zeros(3), "ndarray"),
        (range(3), "range(0, 3)"),
    ],
)
def test_a_setting_is_described_as_text(value: Any, words: Any) -> None:
    assert list_settings(NaiveUnlearner(value)).get("estimator") == words


def test_a_partial_metric_has_a_name() -> None:
    problem = LearningProblem.from_args(StubModel(), (X, Y), TEST, partial(fbeta_score, beta=2), 0)
    assert problem.metric_name == "fbeta(beta=2)"


def test_the_state_of_the_same_algorithm_is_a_fresh_unlearner() -> None:
    model = letheon.InfluenceClassifier(sigma=0.1)
    evaluation = evaluate(model, (X, Y), 2, seeds=1, **SIMPLE)
    size = evaluation.storage[SAME]
    assert f"{size:,} (fresh unlearner)" in str(evaluation)
    assert size > evaluation.storage["ordinary model"]


@pytest.mark.parametrize(
    "table", [X.tolist(), coo_matrix(X), csr_matrix(X)], ids=["list", "coo", "csr"]
)
def test_tables_of_any_kind(table: Any) -> None:
    model = letheon.InfluenceClassifier(sigma=0.1)
    for labels in (Y.tolist(), Y[:, None]):
        arguments: dict[str, Any] = {"seeds": 1, "ordinary": LogisticRegression(), "test": 0.5}
        evaluation = evaluate(model, (table, labels), letheon.datasets.Requests(n=2), **arguments)
        assert evaluation.n_people == 2


@pytest.mark.parametrize(
    ("requests", "n_people"), [(np.int64(3), 3), (0.01, 4), (np.float64(0.01), 4)]
)
def test_numbers_of_any_kind(requests: Any, n_people: int) -> None:
    arguments: dict[str, Any] = {"seeds": np.int64(2), "random_state": None}
    evaluation = evaluate(StubModel(), (X, Y), requests, **arguments, **SIMPLE)
    assert evaluation.n_people == n_people
    assert len(evaluation.trials) == 2
    assert json.loads(evaluation.to_json())["n_people"] == n_people


@pytest.mark.parametrize(
    "model", [LogisticRegression(), make_pipeline(StandardScaler(), LogisticRegression())]
)
def test_a_model_that_cannot_forget_is_refused_with_what_to_do(model: Any) -> None:
    with pytest.raises(CannotForgetError, match="NaiveUnlearner"):
        evaluate(model, (X, Y), 2, **SIMPLE)


def test_a_class_is_no_model() -> None:
    with pytest.raises(TypeError, match="is the class"):
        evaluate(letheon.DaREForestClassifier, (X, Y), 2, **SIMPLE)


def test_test_rows_must_not_all_be_forgotten() -> None:
    test = (TEST[0][:3], TEST[1][:3], [1, 2, 3])
    with pytest.raises(ValueError, match="no test rows remain"):
        evaluate(
            StubModel(), (X, Y), [[1, 2, 3]], seeds=1, test=test, ordinary=LogisticRegression()
        )


def test_unbalanced_classes_are_reported() -> None:
    labels = (X[:, 0] > 1.2).astype(int)
    text = "makes up 92% of the training rows, so a constant prediction has about that accuracy"
    assert text in str(evaluate(StubModel(), (X, labels), 1, seeds=1, **SIMPLE))
    assert "a constant prediction has" not in str(
        evaluate(StubModel(), (X, Y), 1, seeds=1, **SIMPLE)
    )
