"""Default ordinary models: tables with strings, and errors if none can be trained."""

import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_regression
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from letheon import DaREForestRegressor, SISAClassifier
from letheon.evaluation import ORDINARY, choose_best, name_model
from letheon.evaluation._baselines import best_ordinary
from letheon.evaluation._problem import LearningProblem
from letheon.evaluation._usual import usual_models
from letheon.exceptions import IdsTypeError
from letheon.parallel import one_thread
from letheon.select import Candidate, Tolerances, choose
from tests.evaluation.stubs import TEST, StubModel, X, Y, evaluate

N = 120
RNG = np.random.default_rng(0)
AGE = RNG.normal(size=N)
PLAN = RNG.choice(["a", "b", "c"], N).tolist()
KIND = RNG.choice(["x", "y"], N).tolist()
# The column of texts alone tells the label.
LABELS = np.where(np.array(PLAN) == "a", "churn", "stay")
PANDAS = pd.DataFrame({"age": AGE, "plan": PLAN, "kind": pd.Categorical(KIND)})
POLARS = pl.DataFrame({"age": AGE, "plan": PLAN, "kind": pl.Series(KIND, dtype=pl.Categorical)})
OBJECTS = np.array([*zip(AGE, PLAN, KIND, strict=True)], dtype=object)
TABLES = pytest.mark.parametrize(
    "table", [PANDAS, POLARS, OBJECTS], ids=["pandas", "polars", "objects"]
)


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Boosted trees on many threads of a busy machine take seconds."""
    with one_thread():
        yield


def encoding_sisa() -> SISAClassifier:
    encoder = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), [1, 2]))
    return SISAClassifier(make_pipeline(encoder, LogisticRegression()), n_shards=2)


@TABLES
def test_usual_models_learn_from_columns_of_texts(table: Any) -> None:
    models = usual_models(table, is_regression=False, seed=0)
    assert len(models) == 3
    for model in models:
        assert np.mean(model.fit(table, LABELS).predict(table) == LABELS) == 1.0


def test_a_text_that_was_never_seen_is_no_error() -> None:
    unseen = PANDAS.assign(plan="new")
    for model in usual_models(PANDAS, is_regression=False, seed=0):
        assert set(model.fit(PANDAS, LABELS).predict(unseen)) <= {"churn", "stay"}


def test_distinct_names_do_not_become_one_column_each() -> None:
    frame = pd.DataFrame({"name": [f"p{i}" for i in range(500)], "age": np.arange(500.0)})
    (linear,) = usual_models(frame, is_regression=True, seed=0, family="linear")
    model = linear.fit(frame, frame["age"])
    assert model[:-1].transform(frame).shape[1] <= 101


def test_sparse_tables_have_no_boosted_trees() -> None:
    table = sparse.csr_matrix(X)
    models = usual_models(table, is_regression=False, seed=0)
    assert [name_model(model) for model in models] == [
        "LogisticRegression",
        "RandomForestClassifier",
    ]
    assert models[0].fit(table, Y).score(table, Y) > 0.9


@pytest.mark.parametrize("table", [PANDAS, POLARS], ids=["pandas", "polars"])
def test_evaluate_takes_a_frame_with_texts(table: Any) -> None:
    evaluation = evaluate(encoding_sisa(), (table, LABELS), 2, seeds=1)
    assert evaluation.scores[ORDINARY].value == 1.0
    assert "failed" not in evaluation.baselines[ORDINARY]


def test_choose_takes_a_frame_with_texts() -> None:
    comparison = choose(
        (PANDAS, LABELS),
        candidates=[Candidate(encoding_sisa(), efficiency={})],
        requests=2,
        tolerances=Tolerances(effectiveness=0.5),
        cv=2,
    )
    assert comparison.best is not None
    assert "failed" not in comparison.ordinary_chosen
    assert comparison.ordinary_chosen.count(",") == 2


class _Refuses(ClassifierMixin, BaseEstimator):
    def fit(self, *_: Any, **__: Any) -> Any:
        raise ValueError("could not convert string to float: 'a'")


def test_the_first_cause_is_named_and_chained() -> None:
    def score(model: Any) -> float:
        return float(model.fit(X, Y).score(X, Y))

    text = r"no default ordinary model .* \(_Refuses: could not convert string.*ordinary="
    with pytest.raises(ValueError, match=text) as caught:
        choose_best([_Refuses(), _Refuses()], score, are_given=False)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "in fit" in "".join(traceback.format_exception(caught.value.__cause__))


def test_choose_says_the_same_about_a_model_that_is_given() -> None:
    with pytest.raises(ValueError, match=r"no candidate for the ordinary model .*_Refuses: could"):
        choose((X, Y), ordinary=_Refuses(), requests=2)


def test_a_metric_that_fails_is_to_blame_itself() -> None:
    words = np.where(Y == 1, "yes", "no")
    text = "the metric roc auc fails on these labels and predictions"
    with pytest.raises(ValueError, match=text):
        evaluate(StubModel(), (X, words), 2, seeds=1, metric=roc_auc_score)
    with pytest.raises(ValueError, match=text):
        choose((X, words), requests=2, metric=roc_auc_score)


def test_labels_are_no_numbers() -> None:
    words = np.where(Y == 1, "yes", "no")
    with pytest.raises(
        ValueError, match=r"DaREForestRegressor is a regressor.* strings \('no', 'yes'\)"
    ):
        evaluate(DaREForestRegressor(), (X, words), 2, seeds=1)


@pytest.mark.parametrize(
    "ids",
    [
        pd.Series([f"p{i}" for i in range(440)]).mask(lambda s: s.index.isin([7, 9])),
        pd.Series(range(440), dtype="Int64").mask(lambda s: s.isin([7, 9])),
        pl.Series([None if i in (7, 9) else i for i in range(440)]),
        [None if i in (7, 9) else f"p{i}" for i in range(440)],
    ],
    ids=["pandas text", "pandas Int64", "polars", "list"],
)
def test_missing_ids_are_counted(ids: Any) -> None:
    text = r"ids has 2 missing value\(s\), the first in row 7; expected an id for every row"
    with pytest.raises(IdsTypeError, match=text):
        evaluate(StubModel(), (X, Y, ids), 2, seeds=1, test=TEST)
    with pytest.raises(IdsTypeError, match=text):
        choose((X, Y, ids), requests=2, test=TEST)


def test_ids_of_two_kinds_are_refused() -> None:
    mixed = np.array(["a", *range(1, 440)], dtype=object)
    with pytest.raises(IdsTypeError, match="contains values of type int, str"):
        evaluate(StubModel(), (X, Y, mixed), 2, seeds=1, test=TEST)


def test_an_interval_of_r2_ends_at_1() -> None:
    table, numbers = make_regression(150, 3, noise=30.0, random_state=0)
    forest = DaREForestRegressor(n_estimators=3)
    evaluation = evaluate(forest, (table, numbers), 2, seeds=2)
    for score in evaluation.scores.values():
        assert score.high is not None
        assert score.value <= score.high <= 1.0


@pytest.mark.parametrize("ids", [None, np.arange(440) // 2], ids=["single", "pairs"])
def test_sorted_rows_with_a_rare_class_are_stratified(ids: Any) -> None:
    rows = X[np.argsort(X[:, 0])]
    labels = np.arange(440) // 147
    labels[-2:] = 9
    data = (rows, labels) if ids is None else (rows, labels, ids)
    problem = LearningProblem.from_args(LogisticRegression(), data, (rows, labels), None, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ordinary = [DummyClassifier(), LogisticRegression(max_iter=1000)]
        contender, how = best_ordinary(problem, ordinary, 0)
    assert contender.name == "LogisticRegression", how
