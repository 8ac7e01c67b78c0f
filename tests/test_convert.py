"""Conversion of scikit-learn estimators: what becomes what, and whether it still predicts."""

import re
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import randint
from sklearn.base import BaseEstimator, TransformerMixin, is_regressor
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, StratifiedKFold
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestCentroid
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.random_projection import GaussianRandomProjection
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import letheon
from letheon import (
    BoostingRegressor,
    DaREForestClassifier,
    DataIndependent,
    ForgetPipeline,
    SISAClassifier,
)
from letheon.base import ForgetMixin
from letheon.conversion import ConversionReport, ConversionRow
from letheon.conversion._rules import RULES
from letheon.exceptions import CannotForgetError, ConversionWarning

NUMBERS, CATEGORIES = ["age", "income", "hours"], ["city", "job"]
Converted = tuple[Any, ConversionReport]


def convert(estimator: Any, **options: Any) -> Converted:
    return letheon.convert(estimator, return_report=True, **{"random_state": 0, **options})


def convert_alone(estimator: Any, **options: Any) -> tuple[Any, ConversionRow]:
    """Convert an estimator of one part; return it and its row in the report."""
    model, report = convert(estimator, **options)
    (row,) = report
    return model, row


def make_people(n_rows: int, seed: int = 0) -> tuple[pd.DataFrame, NDArray[Any], NDArray[Any]]:
    """Return a table with categories and missing values, labels and targets."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": draw.normal(40, 12, n_rows).round(1),
            "income": draw.lognormal(10, 0.7, n_rows).round(),
            "hours": draw.integers(10, 60, n_rows).astype(float),
            "city": draw.choice(["Oslo", "Rome", "Lima"], n_rows, p=[0.5, 0.3, 0.2]),
            "job": draw.choice(list("abcdef"), n_rows),
        }
    )
    target = (
        0.08 * (frame.age - 40)
        + 1.5 * (np.log(frame.income) - 10)
        + 0.05 * (frame.hours - 35)
        + (frame.city == "Rome")
        - 1.5 * (frame.job == "a")
    ).to_numpy() + draw.logistic(size=n_rows)
    frame.loc[draw.random(n_rows) < 0.1, "age"] = np.nan
    frame.loc[draw.random(n_rows) < 0.05, "city"] = None
    return frame, (target > 0).astype(int), target


def make_columns() -> ColumnTransformer:
    """Return the usual preparation of a table with categories and missing values."""
    fill = SimpleImputer(strategy="most_frequent")
    number = Pipeline([("impute", SimpleImputer()), ("scale", StandardScaler())])
    encode = OneHotEncoder(handle_unknown="ignore")
    category = Pipeline([("impute", fill), ("encode", encode)])
    return ColumnTransformer([("num", number, NUMBERS), ("cat", category, CATEGORIES)])


def with_columns(model: Any) -> Pipeline:
    return Pipeline([("columns", make_columns()), ("model", model)])


TABLE = [
    (StandardScaler(), "preprocessing.StandardScaler", "rounded statistics"),
    (RobustScaler(), "preprocessing.RobustScaler", "rounded statistics"),
    (SimpleImputer(), "preprocessing.SimpleImputer", "rounded statistics"),
    (SimpleImputer(strategy="median"), "preprocessing.SimpleImputer", "rounded statistics"),
    (SimpleImputer(strategy="most_frequent"), "preprocessing.SimpleImputer", "exact equivalent"),
    (OneHotEncoder(), "preprocessing.OneHotEncoder", "exact equivalent"),
    (OrdinalEncoder(), "preprocessing.OrdinalEncoder", "exact equivalent"),
    (TargetEncoder(), "preprocessing.TargetEncoder", "rounded statistics"),
    (CountVectorizer(), "preprocessing.CountVectorizer", "exact equivalent"),
    (TfidfVectorizer(), "preprocessing.TfidfVectorizer", "rounded statistics"),
    (TfidfVectorizer(use_idf=False), "preprocessing.TfidfVectorizer", "exact equivalent"),
    (PCA(), "sums.PCA", "exact equivalent"),
    (RBFSampler(), "sums.RandomFeatures", "rounded statistics"),
    (RBFSampler(gamma="scale"), "KeyedSample(RBFSampler)", "sample of people"),
    (MinMaxScaler(), "KeyedSample(MinMaxScaler)", "sample of people"),
    (MaxAbsScaler(), "KeyedSample(MaxAbsScaler)", "sample of people"),
    (PowerTransformer(), "KeyedSample(PowerTransformer)", "sample of people"),
    (KBinsDiscretizer(), "KeyedSample(KBinsDiscretizer)", "sample of people"),
    (SelectKBest(), "KeyedSample(SelectKBest)", "sample of people"),
    (OneHotEncoder(drop=["a"]), "KeyedSample(OneHotEncoder)", "sample of people"),
    (Normalizer(), "Normalizer", "unchanged"),
    (HashingVectorizer(), "HashingVectorizer", "unchanged"),
    (FunctionTransformer(np.log1p), "DataIndependent(FunctionTransformer)", "exact equivalent"),
    (PolynomialFeatures(), "DataIndependent(PolynomialFeatures)", "exact equivalent"),
    (SplineTransformer(), "KeyedSample(SplineTransformer)", "sample of people"),
    (
        GaussianRandomProjection(2),
        "DataIndependent(GaussianRandomProjection)",
        "exact equivalent",
    ),
    (Ridge(), "sums.Ridge", "exact equivalent"),
    (LinearRegression(), "sums.Ridge", "exact equivalent"),
    (RidgeClassifier(), "sums.RidgeClassifier", "exact equivalent"),
    (LinearDiscriminantAnalysis(), "sums.LinearDiscriminantAnalysis", "exact equivalent"),
    (QuadraticDiscriminantAnalysis(), "sums.QuadraticDiscriminantAnalysis", "exact equivalent"),
    (GaussianNB(), "sums.GaussianNB", "exact equivalent"),
    (MultinomialNB(), "sums.MultinomialNB", "exact equivalent"),
    (ComplementNB(), "sums.ComplementNB", "exact equivalent"),
    (BernoulliNB(), "sums.BernoulliNB", "exact equivalent"),
    (CategoricalNB(), "sums.CategoricalNB", "exact equivalent"),
    (NearestCentroid(), "NearestCentroid", "exact equivalent"),
    (RandomForestClassifier(), "DaREForestClassifier", "other algorithm"),
    (RandomForestRegressor(), "DaREForestRegressor", "other algorithm"),
    (ExtraTreesClassifier(), "DaREForestClassifier", "other algorithm"),
    (ExtraTreesRegressor(), "DaREForestRegressor", "other algorithm"),
    (DecisionTreeClassifier(), "DaREForestClassifier", "other algorithm"),
    (DecisionTreeRegressor(), "DaREForestRegressor", "other algorithm"),
    (HistGradientBoostingClassifier(), "BoostingClassifier", "other algorithm"),
    (HistGradientBoostingRegressor(), "BoostingRegressor", "other algorithm"),
    (HistGradientBoostingRegressor(loss="poisson"), "BoostingRegressor", "other algorithm"),
    (GradientBoostingClassifier(), "BoostingClassifier", "other algorithm"),
    (GradientBoostingRegressor(), "BoostingRegressor", "other algorithm"),
    (LogisticRegression(), "InfluenceClassifier", "other algorithm"),
    (KNeighborsClassifier(), "SISAClassifier(KNeighborsClassifier)", "ensemble of shards"),
    (KNeighborsRegressor(), "SISARegressor(KNeighborsRegressor)", "ensemble of shards"),
    (SVC(), "SISAClassifier(SVC)", "ensemble of shards"),
    (
        StackingClassifier([("tree", DecisionTreeClassifier())]),
        "SISAClassifier(StackingClassifier)",
        "ensemble of shards",
    ),
    (KMeans(), "NaiveUnlearner(KMeans)", "refit"),
    (SISAClassifier(GaussianNB()), "SISAClassifier", "unchanged"),
]


@pytest.mark.parametrize(
    ("estimator", "target", "kind"), TABLE, ids=[f"{e}"[:40] for e, _, _ in TABLE]
)
def test_every_entry_of_the_table(estimator: Any, target: str, kind: str) -> None:
    _, row = convert_alone(estimator)
    assert (row.target, row.kind) == (target, kind)
    assert row.source == type(estimator).__name__
    is_certified, is_fixed = "Influence" in target, target == row.source or "DataInd" in target
    if not isinstance(estimator, ForgetMixin | NearestCentroid):
        assert row.guarantee == ("certified" if is_certified else "" if is_fixed else "exact")
    assert row.cost or row.kind == "unchanged"


@pytest.mark.parametrize("step", [PolynomialFeatures(2), GaussianRandomProjection(1)])
def test_transformers_that_learn_nothing_do_not_retrain_the_model(step: Any) -> None:
    frame, labels, _ = make_people(200)
    table = frame[["income", "hours"]].to_numpy()
    pipeline = make_pipeline(StandardScaler(), step, RidgeClassifier())
    model = convert(pipeline)[0].fit(table, labels)
    assert model.forget([3]).work < 0.5
    stay = np.arange(200) != 3
    fresh = convert(pipeline)[0].fit(table[stay], labels[stay], ids=np.flatnonzero(stay))
    assert fresh.digest() == model.digest()


def test_rules_name_parameters_that_exist() -> None:
    own = {path: rule for path, rule in RULES.items() if path.startswith("sklearn.")}
    assert {type(estimator).__name__ for estimator, _, _ in TABLE} >= {
        path.rpartition(".")[2] for path in own
    }
    for path, rule in own.items():
        ours, theirs = (
            set(signature(getattr(import_module(module), name)).parameters)
            for module, _, name in (rule.target.rpartition("."), path.rpartition("."))
        )
        carried = set(rule.same.split())
        assert carried <= theirs & ours, path
        assert set(rule.fixed) <= ours, path
        assert not (set(rule.changed) | carried) & set(rule.unused.split()), path


IRIS, SPECIES = load_iris(return_X_y=True)


@pytest.mark.parametrize(
    "model",
    [
        Ridge(alpha=3.0),
        Ridge(fit_intercept=False),
        LinearRegression(),
        RidgeClassifier(alpha=0.1),
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2),
        QuadraticDiscriminantAnalysis(reg_param=0.1),
        GaussianNB(var_smoothing=0.01),
        MultinomialNB(alpha=2.0, fit_prior=False),
        ComplementNB(norm=True),
        BernoulliNB(binarize=1.5),
        CategoricalNB(alpha=0.5),
        NearestCentroid(),
        DecisionTreeClassifier(max_depth=3),
        DecisionTreeRegressor(max_depth=3),
    ],
    ids=str,
)
def test_equivalents_predict_the_same(model: Any) -> None:
    X = IRIS.round() if isinstance(model, CategoricalNB) else IRIS
    expected = model.fit(X, SPECIES).predict(X)
    with pytest.warns(ConversionWarning, match="is fitted"):
        ours, _ = convert(model)
    answers = ours.fit(X, SPECIES).predict(X)
    if is_regressor(model):
        np.testing.assert_allclose(answers, expected, atol=0.02)
    else:
        assert (answers == expected).mean() >= 0.99


@pytest.mark.parametrize("strength", [0.2, 5.0])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_strength_of_logistic_regression(strength: float, n_classes: int) -> None:
    few = n_classes > SPECIES
    X, y = StandardScaler().fit_transform(IRIS[few]), SPECIES[few]
    theirs = LogisticRegression(C=strength, fit_intercept=False, tol=1e-10).fit(X, y)
    with pytest.warns(ConversionWarning, match="is fitted"):
        ours, row = convert_alone(theirs)
    assert (ours.l2, ours.reg) == (1 / strength, "total")
    assert row.notes[-1] == "without effect: tol=1e-10"
    weights = np.asarray(ours.fit(X, y).weights_.open()).reshape(theirs.coef_.T.shape)
    np.testing.assert_allclose(weights.T, theirs.coef_, rtol=1e-4, atol=1e-6)


def test_one_against_the_rest_stays() -> None:
    model, _ = convert_alone(LogisticRegression(solver="liblinear"))
    assert model.multi_class == "ovr"


def test_parameters_of_forests() -> None:
    forest = RandomForestClassifier(
        n_estimators=7,
        criterion="log_loss",
        max_depth=4,
        min_samples_leaf=3,
        max_features=0.5,
        n_jobs=2,
        random_state=3,
    )
    model, row = convert_alone(forest, random_state=None)
    expected = DaREForestClassifier(
        n_estimators=7,
        criterion="entropy",
        max_depth=4,
        min_samples_leaf=3,
        max_features=0.5,
        subsample=0.632,
        n_jobs=2,
        random_state=3,
    )
    assert model.get_params() == expected.get_params()
    assert not row.lost
    assert convert_alone(RandomForestClassifier())[0].max_depth is None
    assert convert_alone(ExtraTreesClassifier())[0].n_thresholds == 1
    assert convert_alone(RandomForestRegressor(max_samples=0.5))[0].subsample == 0.393


def test_parameters_of_histogram_boosting() -> None:
    boosting = HistGradientBoostingRegressor(
        loss="poisson",
        learning_rate=0.2,
        max_iter=7,
        max_leaf_nodes=12,
        min_samples_leaf=3,
        l2_regularization=0.5,
        max_features=0.8,
        max_bins=255,
        categorical_features=[1],
        early_stopping=False,
        random_state=3,
    )
    model, row = convert_alone(boosting, strict=True, random_state=None)
    expected = BoostingRegressor(
        loss="poisson",
        learning_rate=0.2,
        n_estimators=7,
        max_leaves=12,
        min_samples_leaf=3,
        l2_regularization=0.5,
        colsample=0.8,
        max_bins=254,
        categorical_features=[1],
        random_state=3,
    )
    assert model.get_params() == expected.get_params()
    assert "no early stopping: all rounds are trained" in row.notes
    assert model.skeleton_people is None
    assert not any("20000" in note for note in row.notes)
    assert convert_alone(HistGradientBoostingClassifier(max_leaf_nodes=None))[0].max_leaves == 64


def test_parameters_of_gradient_boosting() -> None:
    model, row = convert_alone(GradientBoostingClassifier(n_estimators=9, max_depth=4))
    assert (model.n_estimators, model.max_leaves, row.lost) == (9, 16, ())
    assert convert_alone(GradientBoostingRegressor(max_leaf_nodes=5))[0].max_leaves == 5
    assert "max_depth=9 (a tree" in convert_alone(GradientBoostingRegressor(max_depth=9))[1].lost[0]


@pytest.mark.parametrize(
    ("estimator", "lost"),
    [
        (RandomForestClassifier(ccp_alpha=0.1), "ccp_alpha=0.1"),
        (RandomForestClassifier(max_samples=50), "max_samples=50"),
        (RandomForestClassifier(min_samples_leaf=0.1), "min_samples_leaf=0.1"),
        (DecisionTreeClassifier(max_leaf_nodes=5), "max_leaf_nodes=5"),
        (HistGradientBoostingClassifier(early_stopping=True), "early_stopping=True"),
        (HistGradientBoostingClassifier(max_depth=4), "max_depth=4"),
        (HistGradientBoostingRegressor(max_leaf_nodes=100), "max_leaf_nodes=100"),
        (HistGradientBoostingRegressor(learning_rate=2.0), "learning_rate=2.0"),
        (GradientBoostingClassifier(n_iter_no_change=5), "n_iter_no_change=5"),
        (GradientBoostingClassifier(subsample=0.5), "subsample=0.5"),
        (GradientBoostingRegressor(max_features="sqrt"), "max_features='sqrt'"),
    ],
    ids=str,
)
def test_lost_parameters_are_reported_and_refused_by_strict(estimator: Any, lost: str) -> None:
    _, report = convert(estimator)
    assert lost in report.rows[0].lost[0]
    assert f"{lost}" in str(report)
    assert "is not carried over" in str(report)
    with pytest.warns(ConversionWarning, match=re.escape(f"without {lost}")):
        letheon.convert(estimator)
    with pytest.raises(CannotForgetError, match=re.escape(lost)):
        convert(estimator, strict=True)


@pytest.mark.parametrize(
    ("estimator", "reason"),
    [
        (LogisticRegression(l1_ratio=1.0, solver="saga"), "l1_ratio=1.0"),
        (LogisticRegression(C=np.inf), "C=inf"),
        (LogisticRegression(class_weight="balanced"), "class_weight='balanced'"),
        (RandomForestClassifier(class_weight="balanced"), "class_weight='balanced'"),
        (RandomForestRegressor(criterion="absolute_error"), "criterion='absolute_error'"),
        (HistGradientBoostingRegressor(loss="absolute_error"), "loss='absolute_error'"),
        (HistGradientBoostingRegressor(loss="gamma"), "loss='gamma'"),
        (HistGradientBoostingClassifier(monotonic_cst=[1, 0]), "monotonic_cst=[1, 0]"),
        (HistGradientBoostingClassifier(class_weight="balanced"), "class_weight='balanced'"),
        (GradientBoostingRegressor(loss="huber"), "loss='huber'"),
        (GradientBoostingClassifier(loss="exponential"), "loss='exponential'"),
        (Ridge(positive=True), "positive=True"),
    ],
    ids=str,
)
def test_models_with_other_parameters_are_wrapped(estimator: Any, reason: str) -> None:
    model, row = convert_alone(estimator, strict=True)
    assert row.kind == "ensemble of shards"
    assert row.notes[-1].endswith(f"does not support {reason}")
    assert model.estimator.get_params() == estimator.get_params()
    assert model.n_shards == 5


def test_parameters_without_effect_are_noted() -> None:
    _, row = convert_alone(Ridge(solver="lsqr", copy_X=False), strict=True)
    assert row.notes == ("without effect: copy_X=False, solver='lsqr'",)


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        RandomForestClassifier(n_estimators=40, min_samples_leaf=5, random_state=0),
        Ridge(),
        HistGradientBoostingClassifier(max_iter=30, random_state=0),
        HistGradientBoostingRegressor(max_iter=30, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_usual_pipeline_of_a_data_frame(model: Any) -> None:
    X, labels, targets = make_people(1500)
    X_new, new_labels, new_targets = make_people(1500, 1)
    y, y_new = (targets, new_targets) if is_regressor(model) else (labels, new_labels)
    ids = [f"p{i}" for i in range(len(X))]
    pipeline = with_columns(model)
    ours, report = convert(pipeline)
    assert [row.step for row in report][:3] == ["", "columns", "columns__num"]
    fresh = convert(pipeline)[0]
    ours.fit(X, y, ids=ids).forget(ids[10:20])
    remaining = np.r_[:10, 20 : len(X)]
    fresh.fit(X.iloc[remaining], y[remaining], ids=[ids[i] for i in remaining])
    pipeline.fit(X, y)
    if isinstance(model, LogisticRegression):
        first, second = (fit["model"].weights_.open() for fit in (ours, fresh))
        np.testing.assert_allclose(first, second, atol=0.01)
    else:
        assert ours.digest() == fresh.digest()
    if is_regressor(model):
        scores = [r2_score(y_new, fit.predict(X_new)) for fit in (pipeline, ours)]
    else:
        scores = [roc_auc_score(y_new, fit.predict_proba(X_new)[:, 1]) for fit in (pipeline, ours)]
    text = str(report)
    assert scores[1] >= scores[0] - (0.02 if "BoostingRegressor" in text else 0.01) > 0.3
    assert scores[1] <= scores[0] + (0.02 if "SISA" in text or "Boosting" in text else 0.01)


@pytest.mark.parametrize("seed", [None, 5])
def test_seeds(seed: int | None) -> None:
    pipeline = make_pipeline(StandardScaler(), KNeighborsClassifier())
    model, _ = convert(pipeline, random_state=seed)
    assert model["standardscaler"].random_state is seed
    assert model["kneighborsclassifier"].random_state is seed
    own, _ = convert_alone(SVC(random_state=7), random_state=seed)
    assert own.random_state == (7 if seed is None else 5)


def test_estimators_that_forget_stay() -> None:
    pipeline = make_pipeline(StandardScaler(), DaREForestClassifier(random_state=1))
    model, report = convert(pipeline)
    assert [row.kind for row in report] == ["container", "dropped", "unchanged"]
    assert model.steps[-1][1].random_state == 1
    assert model.steps[-1][1] is not pipeline.steps[-1][1]


def test_a_fitted_model_that_forgets_stays_fitted() -> None:
    model = DaREForestClassifier(n_estimators=2).fit(IRIS, SPECIES)
    assert convert_alone(model)[0] is model


def test_texts_and_targets_in_columns() -> None:
    X, y, _ = make_people(150)
    X = X.assign(words=[f"{city} {job}" for city, job in zip(X.city, X.job, strict=True)])
    columns = ColumnTransformer(
        [
            ("words", TfidfVectorizer(token_pattern=r"(?u)\b\w+\b"), "words"),
            ("job", TargetEncoder(), ["job"]),
            ("age", SimpleImputer(missing_values=pd.NA), ["age"]),
        ]
    )
    pipeline = make_pipeline(columns, RidgeClassifier())
    ours, fresh = (convert(pipeline, strict=True)[0] for _ in range(2))
    ours.fit(X, y).forget([0, 1])
    assert fresh.fit(X[2:], y[2:], ids=range(2, 150)).digest() == ours.digest()
    assert (ours.predict(X) == pipeline.fit(X, y).predict(X)).mean() > 0.85


def kinds_of(pipeline: Any) -> dict[str, str]:
    return {row.step: row.kind for row in convert(pipeline)[1] if row.kind != "container"}


@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler(), RobustScaler()], ids=str)
@pytest.mark.parametrize(
    "tree", [RandomForestClassifier(), HistGradientBoostingClassifier()], ids=str
)
def test_scalers_directly_before_trees_are_dropped(scaler: Any, tree: Any) -> None:
    direct = Pipeline([("fill", SimpleImputer()), ("scale", scaler), ("tree", tree)])
    assert kinds_of(direct)["scale"] == "dropped"
    groups = Pipeline([("columns", ColumnTransformer([("a", scaler, [0])])), ("tree", tree)])
    assert kinds_of(groups)["columns__a"] == "dropped"
    model, report = convert(groups)
    assert model["columns"].transformers == [("a", "passthrough", [0])]
    assert "trees do not depend on the scale" in str(report)
    before = Pipeline([("scale", scaler), ("norm", Normalizer()), ("tree", tree)])
    assert kinds_of(before)["scale"] != "dropped"
    linear = Pipeline([("scale", scaler), ("model", Ridge())])
    assert kinds_of(linear)["scale"] != "dropped"


def test_a_pipeline_of_scalers_before_trees_passes_through() -> None:
    scalers = make_pipeline(StandardScaler(), MinMaxScaler())
    pipeline = Pipeline([("scale", scalers), ("tree", RandomForestClassifier())])
    model, _ = convert(pipeline)
    assert [name for name, _ in model.steps] == ["tree"]


def test_dense_rows_for_models_that_need_them() -> None:
    forest, _ = convert(with_columns(RandomForestClassifier()))
    ridge, _ = convert(with_columns(Ridge()))
    encoder = "columns__cat__encode__sparse_output"
    assert [model.get_params()[encoder] for model in (forest, ridge)] == [False, True]
    assert forest.get_params()["columns__sparse_threshold"] == 0.0
    bins, _ = convert(make_pipeline(KBinsDiscretizer(), RandomForestClassifier()))
    assert bins.steps[0][1].transformer.encode == "onehot-dense"


def test_texts() -> None:
    texts = ["red apple", "green apple", "red car", "fast car", "green tree", "fast red car"] * 4
    y = np.array([0, 0, 1, 1, 0, 1] * 4)
    pipeline = make_pipeline(TfidfVectorizer(), MultinomialNB())
    model, _ = convert(pipeline, strict=True)
    model.fit(texts, y).forget([0])
    assert model.predict(["a fast car"]).tolist() == [1]
    forest, report = convert(make_pipeline(CountVectorizer(), RandomForestClassifier()))
    assert report.rows[-1].notes[-1] == "DaREForestClassifier takes no sparse matrices of terms"
    assert forest.fit(texts, y).predict(["fast car"]).tolist() == [1]
    small = make_pipeline(CountVectorizer(), TruncatedSVD(2), RandomForestClassifier())
    assert convert(small)[1].rows[-1].target == "DaREForestClassifier"


def test_stateless_steps_and_groups_of_columns() -> None:
    log = Pipeline([("fill", SimpleImputer()), ("log", FunctionTransformer(np.log1p))])
    columns = ColumnTransformer(
        [("log", log, ["income"]), ("same", "passthrough", ["hours"]), ("no", "drop", ["job"])],
        remainder=OneHotEncoder(sparse_output=False),
    )
    X, y, _ = make_people(120)
    X = X.drop(columns="age")
    pipeline = make_pipeline(columns, Ridge())
    ours, report = convert(pipeline, strict=True)
    steps = {row.step for row in report}
    assert {"columntransformer__log__log", "columntransformer__remainder"} <= steps
    fresh = convert(pipeline)[0]
    ours.fit(X, y, ids=range(120))
    names = ["log__income", "same__hours", "remainder__city_Lima"]
    assert ours.get_feature_names_out()[:3].tolist() == names
    np.testing.assert_allclose(ours.predict(X), pipeline.fit(X, y).predict(X), atol=1e-3)
    ours.forget([3, 5])
    remaining = [i for i in range(120) if i not in (3, 5)]
    fresh.fit(X.iloc[remaining], y[remaining], ids=remaining)
    assert fresh.digest() == ours.digest()


def test_selectors_and_transformers_for_a_sample_of_people() -> None:
    columns = ColumnTransformer(
        [
            ("num", MinMaxScaler(), make_column_selector(dtype_include="number")),
            ("cat", OneHotEncoder(), make_column_selector(dtype_exclude="number")),
        ]
    )
    X, y, _ = make_people(200)
    X = X.drop(columns="age")
    pipeline = make_pipeline(columns, SelectKBest(k=5), Ridge())
    ours, report = convert(pipeline)
    assert [row.kind for row in report].count("sample of people") == 2
    fresh = convert(pipeline)[0]
    ours.fit(X, y)
    np.testing.assert_allclose(ours.predict(X), pipeline.fit(X, y).predict(X), atol=1e-3)
    ours.forget([0])
    assert fresh.fit(X[1:], y[1:], ids=range(1, 200)).digest() == ours.digest()


def test_components_in_front_of_a_model_come_from_a_sample() -> None:
    model, report = convert(make_pipeline(PCA(2), Ridge()))
    assert report.rows[1].target == "KeyedSample(PCA)"
    assert "each removal would change all later steps" in str(report)
    only, _ = convert(make_pipeline(StandardScaler(), PCA(2)))
    assert only.fit(IRIS).transform(IRIS).shape == (150, 2)
    assert isinstance(model, ForgetPipeline)


def test_unions() -> None:
    union = FeatureUnion(
        [("scale", StandardScaler()), ("bins", KBinsDiscretizer(3)), ("no", "drop")]
    )
    ours, report = convert(make_pipeline(union, Ridge()))
    assert [row.source for row in report][1:4] == [
        "FeatureUnion",
        "StandardScaler",
        "KBinsDiscretizer",
    ]
    assert ours.fit(IRIS, SPECIES).predict(IRIS).shape == (150,)
    texts = FeatureUnion([("words", TfidfVectorizer())])
    with pytest.raises(CannotForgetError, match="column of a data frame and use a ColumnTransf"):
        convert(make_pipeline(texts, Ridge()))
    with pytest.raises(CannotForgetError, match="transformer_weights"):
        convert(FeatureUnion([("a", StandardScaler())], transformer_weights={"a": 2.0}))


def test_grid_search() -> None:
    X, y, _ = make_people(150)
    grid = {
        "model__C": [0.1, 10.0],
        "columns__num__impute__strategy": ["mean", "median"],
        "model__max_iter": [50],
    }
    search = GridSearchCV(
        with_columns(LogisticRegression()), grid, cv=StratifiedKFold(3), scoring="roc_auc"
    )
    ours, report = convert(search)
    assert (ours.cv, ours.scoring, ours.random_state) == (3, "roc_auc", 0)
    assert ours.param_grid == {
        "model__l2": [10.0, 0.1],
        "columns__num__impute__strategy": ["mean", "median"],
    }
    assert any("'model__max_iter' is not in the grid" in note for note in report.rows[0].notes)
    assert report.rows[0].guarantee == "certified"
    ours.fit(X, y)
    assert set(ours.best_params_) == set(ours.param_grid)
    forest = GridSearchCV(with_columns(RandomForestClassifier()), {"columns__num__scale": [None]})
    assert "columns__num__scale" not in str(convert(forest)[0].param_grid)


def test_grids_reach_into_wrappers_and_replace_steps() -> None:
    pipeline = Pipeline([("scale", MinMaxScaler()), ("model", SVC())])
    grid = [
        {"model__C": [1.0], "scale__clip": [True]},
        {"model": [KNeighborsClassifier(), RandomForestClassifier()]},
    ]
    ours, _ = convert(GridSearchCV(pipeline, grid))
    first, second = ours.param_grid
    assert first == {"model__estimator__C": [1.0], "scale__transformer__clip": [True]}
    assert [type(model).__name__ for model in second["model"]] == [
        "SISAClassifier",
        "DaREForestClassifier",
    ]


def test_random_search_draws_its_candidates_at_once() -> None:
    space = {"n_neighbors": randint(1, 30)}
    search = RandomizedSearchCV(KNeighborsClassifier(), space, n_iter=4, random_state=1)
    ours, _ = convert(search, random_state=None)
    assert len(ours.param_grid) == 4
    assert all(1 <= grid["estimator__n_neighbors"][0] < 30 for grid in ours.param_grid)


@pytest.mark.parametrize(
    ("search", "text"),
    [
        (GridSearchCV(LogisticRegression(), {"C": [0.0, np.inf]}), "does not support C=0.0"),
        (GridSearchCV(Ridge(), {"nothing": [1]}), "has no such parameter"),
        (GridSearchCV(Ridge(), {"alpha": [1]}, cv=[([0], [1])]), "expected a number of folds"),
        (GridSearchCV(Ridge(), {"alpha": [1]}, scoring=["r2"], refit=False), "several scores"),
        (GridSearchCV(make_pipeline(Ridge()), {"steps": [[]]}), "no step 'steps'"),
    ],
)
def test_searches_that_cannot_be_converted(search: Any, text: str) -> None:
    with pytest.raises(CannotForgetError, match=re.escape(text)):
        convert(search)


class _Centre(TransformerMixin, BaseEstimator):
    """A transformer of a user."""

    def fit(self, X: Any, y: Any = None) -> "_Centre":
        self.mean_ = np.mean(X, axis=0)
        return self

    def transform(self, X: Any) -> Any:
        return X - self.mean_


class _Counter(_Centre):
    """A transformer with a parameter that has no canonical bytes."""

    def __init__(self, count: Any = None) -> None:
        self.count = count


def test_transformers_of_users_are_fitted_on_a_sample() -> None:
    model, report = convert(make_pipeline(_Centre(), Ridge()))
    assert report.rows[1].notes[-1] == "to load it from a file, pass trusted=[_Centre]"
    model.fit(IRIS, SPECIES).forget([4])
    fresh, _ = convert(make_pipeline(_Centre(), Ridge()))
    remaining = [i for i in range(150) if i != 4]
    fresh.fit(IRIS[remaining], SPECIES[remaining], ids=remaining)
    assert fresh.digest() == model.digest()


def _double(X: Any) -> Any:
    return 2 * X


ERRORS: list[tuple[Any, str]] = [
    (
        make_pipeline(_Counter(lambda X: X), Ridge()),
        "step '_counter' (_Counter) cannot be converted",
    ),
    (make_pipeline(FunctionTransformer(_double), Ridge()), "letheon.DataIndependent("),
    (make_pipeline(FrozenEstimator(MinMaxScaler()), Ridge()), "is frozen"),
    (ColumnTransformer([("a", Normalizer(), [0])], transformer_weights={"a": 2}), "weights"),
    (3, "3 is no estimator of scikit-learn"),
    (Ridge, "or a search. Pass an instance: Ridge()"),
    (Pipeline([("a", object()), ("b", Ridge())]), "step 'a'"),
]


@pytest.mark.parametrize(("estimator", "text"), ERRORS, ids=[text for _, text in ERRORS])
def test_errors_say_what_to_do(estimator: Any, text: str) -> None:
    with pytest.raises(CannotForgetError, match=re.escape(text)):
        convert(estimator)


def test_declared_functions_stay() -> None:
    pipeline = make_pipeline(DataIndependent(FunctionTransformer(np.sqrt)), Ridge())
    assert convert(pipeline)[1].rows[1].kind == "unchanged"


def test_strict_refuses_approximations() -> None:
    with pytest.raises(CannotForgetError, match=r"step 'model' \(LogisticRegression\) has no equ"):
        convert(with_columns(LogisticRegression()), strict=True)
    with pytest.raises(CannotForgetError, match="certified"):
        convert(letheon.InfluenceClassifier(), strict=True)
    assert convert(with_columns(Ridge()), strict=True)[1].is_exact
    assert not convert(with_columns(LogisticRegression()))[1].is_exact


def test_nothing_is_converted_silently() -> None:
    with pytest.warns(ConversionWarning, match="1 of 9 parts are not the same: model: Logist"):
        letheon.convert(with_columns(LogisticRegression()))
    assert isinstance(letheon.convert(with_columns(Ridge())), ForgetPipeline)
    pipeline = with_columns(Ridge()).set_params(memory="cache").set_output(transform="pandas")
    remarks = [note for row in convert(pipeline)[1] for note in row.list_remarks()]
    assert "without effect: memory='cache'" in remarks
    assert remarks.count("set_output is not carried over") >= 1


def test_the_original_is_not_changed() -> None:
    pipeline = with_columns(RandomForestClassifier())
    before = str(pipeline.get_params())
    convert(pipeline)
    assert str(pipeline.get_params()) == before


def test_report_as_text_and_html() -> None:
    _, report = convert(with_columns(RandomForestClassifier()))
    lines = str(report).splitlines()
    assert lines[0].split() == ["step", "scikit-learn", "letheon", "kind", "guarantee"]
    assert lines[2].split() == ["(whole)", "Pipeline", "ForgetPipeline", "container", "exact"]
    assert len(report) == 9
    assert max(map(len, lines)) <= 120
    page = report._repr_html_()
    assert page.count("<tr>") == 10
    assert "sparse_output=False: DaREForestClassifier takes no sparse matrices" in page
    escaped = ConversionReport((ConversionRow("<b>", "a", "b", "refit"),))._repr_html_()
    assert "&lt;b&gt;" in escaped


NUMERIC: list[Callable[[], Any]] = [
    SimpleImputer,
    lambda: make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
    lambda: make_pipeline(SimpleImputer(strategy="constant"), MinMaxScaler()),
    lambda: make_pipeline(SimpleImputer(), FunctionTransformer(np.cbrt)),
    lambda: make_pipeline(SimpleImputer(add_indicator=True), RobustScaler(), Normalizer()),
]
CATEGORICAL: list[Callable[[], Any]] = [
    OneHotEncoder,
    lambda: OneHotEncoder(min_frequency=3, handle_unknown="infrequent_if_exist"),
    lambda: make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(drop="first")),
    lambda: make_pipeline(OrdinalEncoder(encoded_missing_value=-1), StandardScaler()),
]
MODELS: list[Callable[[], Any]] = [
    Ridge,
    RidgeClassifier,
    GaussianNB,
    lambda: RandomForestClassifier(3),
    lambda: DecisionTreeClassifier(max_depth=3),
    lambda: HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=2),
    lambda: KNeighborsClassifier(2),
]


@settings(max_examples=25, deadline=None)
@given(
    number=st.sampled_from(NUMERIC),
    category=st.sampled_from(CATEGORICAL),
    model=st.sampled_from(MODELS),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_converted_pipelines_forget_exactly(
    number: Callable[[], Any],
    category: Callable[[], Any],
    model: Callable[[], Any],
    seed: int,
    data: st.DataObject,
) -> None:
    X, y, _ = make_people(40, seed)
    ids = np.arange(40) // 2
    gone = data.draw(st.lists(st.integers(0, 19), min_size=1, max_size=3, unique=True))
    columns = ColumnTransformer([("n", number(), NUMBERS), ("c", category(), CATEGORIES)])
    pipeline = make_pipeline(columns, model())
    ours, _ = convert(pipeline, random_state=seed, strict=True)
    ours.fit(X, y, ids=ids).forget(gone)
    remaining = ~np.isin(ids, gone)
    fresh, _ = convert(pipeline, random_state=seed)
    fresh.fit(X[remaining], y[remaining], ids=ids[remaining])
    assert ours.digest() == fresh.digest()
    assert np.array_equal(ours.predict(X[remaining]), fresh.predict(X[remaining]))
