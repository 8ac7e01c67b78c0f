"""Pipelines that forget: every step is what a fresh fit makes it, or nothing changes."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    clone,
    is_classifier,
    is_regressor,
)
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
    scale,
)
from sklearn.random_projection import GaussianRandomProjection
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import letheon
from letheon import (
    DataIndependent,
    ForgetPipeline,
    NaiveUnlearner,
    SISAClassifier,
    SISARegressor,
)
from letheon import compose as compose_module
from letheon import naive as naive_module
from letheon.compose import is_data_independent
from letheon.data import _tables as tables_module
from letheon.exceptions import (
    CannotForgetError,
    ChangedParametersError,
    CorruptFileError,
    EmptyModelError,
    IdsLengthError,
    NotFittedError,
    UnknownIdError,
)
from letheon.guarantee import MethodFacts
from tests.sharded.people import examples

RNG = np.random.default_rng(2)
IDS = np.array([f"p{owner:02d}" for owner in RNG.permutation(np.repeat(np.arange(10), [1, 3] * 5))])
X = RNG.normal(size=(20, 3)) + 5
Y = np.array(["no", "yes"])[np.arange(20) % 2]
NAMES = sorted(set(IDS))


def naive(inner: Any, seed: Any = 0) -> NaiveUnlearner:
    return NaiveUnlearner(inner, random_state=seed)


def tree(seed: Any = 0) -> NaiveUnlearner:
    return naive(DecisionTreeClassifier(max_features=1), seed)


PIPELINES: dict[str, list[tuple[str, Any]]] = {
    "scaler that forgets": [("scale", naive(StandardScaler())), ("model", tree())],
    "stateless": [("norm", Normalizer()), ("model", tree())],
    "declared": [("poly", DataIndependent(PolynomialFeatures(2))), ("model", tree())],
    "mixed": [
        ("norm", Normalizer()),
        ("scale", naive(StandardScaler())),
        ("project", DataIndependent(GaussianRandomProjection(2, random_state=3))),
        ("skip", "passthrough"),
        ("none", None),
        ("model", tree()),
    ],
    "sisa at the end": [
        ("scale", naive(StandardScaler())),
        ("model", SISAClassifier(DecisionTreeClassifier(), n_shards=2, random_state=0)),
    ],
    "stateless, then sisa": [
        ("norm", Normalizer()),
        ("model", SISAClassifier(DecisionTreeClassifier(), n_shards=2, random_state=0)),
    ],
    "nested": [("first", ForgetPipeline([("scale", naive(StandardScaler()))])), ("model", tree())],
    "alone": [("model", tree())],
}


def pipeline(name: str) -> ForgetPipeline:
    return clone(ForgetPipeline(PIPELINES[name]))


def without(forgotten: Any) -> tuple[Any, Any, Any]:
    keep = ~np.isin(IDS, list(forgotten))
    return X[keep], Y[keep], IDS[keep]


def fitted(name: str, forgotten: Any = ()) -> ForgetPipeline:
    rows, labels, ids = without(forgotten)
    return pipeline(name).fit(rows, labels, ids=ids)


@pytest.mark.parametrize("name", PIPELINES)
@given(requests=st.lists(st.sets(st.sampled_from(NAMES), max_size=2), min_size=1, max_size=3))
@examples(8)
def test_any_sequence_of_requests_ends_in_a_fresh_fit(name: str, requests: list[set[str]]) -> None:
    model, forgotten = fitted(name), set[str]()
    for request in requests:
        receipt = model.forget(request - forgotten)
        assert receipt.n_ids == len(request - forgotten)
        assert receipt.n_rows == np.isin(IDS, list(request - forgotten)).sum()
        forgotten |= request
    fresh = fitted(name, forgotten)
    assert model.digest() == fresh.digest()
    assert np.array_equal(model.predict(X), fresh.predict(X))
    assert model.ids_.tolist() == fresh.ids_.tolist()
    assert model.n_rows_ == fresh.n_rows_


@pytest.mark.parametrize(
    ("name", "rebuilt", "keeps_rows"),
    [
        ("stateless", {"models": 1}, False),
        ("declared", {"models": 1}, False),
        ("mixed", {"steps": 6}, True),
    ],
)
def test_only_what_has_to_be_is_rebuilt(
    name: str, rebuilt: dict[str, int], keeps_rows: bool
) -> None:
    model = fitted(name)
    assert model.forget(["p03"]).rebuilt == rebuilt
    assert (model.fitted_.rows is not None) == keeps_rows


@pytest.mark.parametrize("name", PIPELINES)
def test_forgotten_numbers_are_nowhere_in_the_pipeline(name: str) -> None:
    secret, rows = 1234567.890625, X.copy()
    rows[IDS == "p00"] = secret
    model = pipeline(name).fit(rows, Y, ids=IDS)
    model.forget(["p00"])
    dumped = pickle.dumps(model)
    assert np.float64(secret).tobytes() not in dumped
    assert b"p00" not in dumped


@pytest.mark.parametrize(
    "step",
    [
        None,
        "passthrough",
        Normalizer(),
        HashingVectorizer(),
        DataIndependent(FunctionTransformer()),
        DataIndependent(PolynomialFeatures()),
    ],
)
def test_steps_that_learn_nothing(step: Any) -> None:
    assert is_data_independent(step)


@pytest.mark.parametrize(
    "step",
    [
        StandardScaler(),
        naive(Normalizer()),
        OneHotEncoder(),
        PolynomialFeatures(),
        FunctionTransformer(),
        FunctionTransformer(scale),
    ],
)
def test_steps_that_learn(step: Any) -> None:
    assert not is_data_independent(step)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [("s", StandardScaler()), ("m", tree())],
            r"step 's' learns from data.*NaiveUnlearner\(StandardScaler.*DataIndependent",
        ),
        # Stateless by its tags, and yet every row it returns depends on all the others.
        (
            [("s", FunctionTransformer(scale)), ("m", tree())],
            r"step 's' learns from data.*or DataIndependent\(FunctionTransformer",
        ),
        (
            [("m", LogisticRegression())],
            r"last step 'm' \(LogisticRegression\(\)\) cannot forget; use NaiveUnlearner\(Log",
        ),
        ([("s", tree()), ("m", "passthrough")], "last step 'm' .'passthrough'. cannot forget"),
    ],
)
def test_steps_that_cannot_forget_are_refused(steps: Any, message: str) -> None:
    with pytest.raises(CannotForgetError, match=message):
        ForgetPipeline(steps).fit(X, Y)


@pytest.mark.parametrize(
    "steps", [[tree()], [("a", tree(), "b")], "ab", [("s", Normalizer()), tree()]]
)
def test_steps_are_pairs(steps: Any) -> None:
    with pytest.raises(ValueError, match=r"is not valid; expected a list of \(name, step\)"):
        ForgetPipeline(steps).fit(X, Y)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "at least one step"),
        (["a", "a"], r"\['a', 'a'\].*distinct names"),
        (["a__b"], "contain '__'"),
        (["steps"], "must not be 'steps'"),
    ],
)
def test_names_of_steps(names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ForgetPipeline([(name, naive(StandardScaler())) for name in names]).fit(X)


@pytest.mark.parametrize("name", ["scaler that forgets", "stateless", "nested"])
@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (["p00", "unknown"], UnknownIdError),
        ([7], UnknownIdError),
        (NAMES, EmptyModelError),
        ([None], TypeError),
        ("p00", TypeError),
    ],
)
def test_refusals_change_nothing(name: str, ids: Any, error: type[Exception]) -> None:
    model = fitted(name)
    before = model.digest()
    with pytest.raises(error):
        model.forget(ids)
    assert model.digest() == before


@pytest.mark.parametrize("early", [naive(StandardScaler()), Normalizer()])
def test_one_class_left_is_an_empty_model(early: Any) -> None:
    steps = [("first", early), ("model", naive(LogisticRegression()))]
    model = ForgetPipeline(steps).fit(
        [[1.0], [2.0], [3.0]], ["a", "a", "b"], ids=["ann", "bob", "eve"]
    )
    before = model.digest()
    with pytest.raises(EmptyModelError, match=r"remaining rows would fail.*at least 2 classes"):
        model.forget(["eve"])
    assert model.digest() == before
    assert model.classes_.tolist() == ["a", "b"]


class FragileClassifier(ClassifierMixin, BaseEstimator):
    """Raises when its class says so."""

    error: ClassVar[BaseException | None] = None

    def fit(self, X: Any, y: Any) -> "FragileClassifier":
        if FragileClassifier.error is not None:
            raise FragileClassifier.error
        self.classes_, self.sum_ = np.unique(y), float(np.sum(X))
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.classes_[0])


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError, EmptyModelError),
        (IndexError, EmptyModelError),
        (CorruptFileError, CorruptFileError),
        (MemoryError, MemoryError),
        (KeyboardInterrupt, KeyboardInterrupt),
    ],
)
@pytest.mark.parametrize("early", [naive(StandardScaler()), Normalizer()])
def test_an_accident_in_the_last_step_changes_no_step(
    error: type[BaseException],
    raised: type[BaseException],
    early: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ForgetPipeline([("first", clone(early)), ("model", naive(FragileClassifier()))]).fit(
        X, Y, ids=IDS
    )
    before = pickle.dumps(model)
    monkeypatch.setattr(FragileClassifier, "error", error("no luck"))
    with pytest.raises(raised, match="no luck"):
        model.forget(["p03"])
    assert pickle.dumps(model) == before


def test_no_columns_left_for_the_last_step_is_an_empty_model() -> None:
    town = np.where(IDS == "p02", "paris", "rome").astype(object)[:, None]
    encode = naive(OneHotEncoder(drop="first"))
    model = ForgetPipeline([("encode", encode), ("model", tree())]).fit(town, Y, ids=IDS)
    before = model.digest()
    with pytest.raises(EmptyModelError, match=r"remaining rows would fail.*0 feature"):
        model.forget(["p02"])
    assert model.digest() == before


def test_steps_without_a_seed_keep_the_one_they_drew() -> None:
    steps = [
        ("scale", ForgetPipeline([("inner", naive(StandardScaler(), None))])),
        ("project", DataIndependent(GaussianRandomProjection(2))),
        ("model", naive(RandomForestClassifier(2), None)),
    ]
    model = ForgetPipeline(steps).fit(X, Y, ids=IDS)

    def drawn() -> tuple[Any, ...]:
        (_, scale), (_, project), (_, last) = model.steps_
        return scale.seed_, project.transformer_.components_.tolist(), last.seed_, model.seed_

    before = drawn()
    model.forget(["p03"])
    model.forget(["p05"])
    assert drawn() == before


def test_a_generator_of_the_caller_decides_a_projection() -> None:
    def components(seed: int) -> Any:
        project = GaussianRandomProjection(2, random_state=np.random.RandomState(seed))
        model = ForgetPipeline([("project", DataIndependent(project)), ("model", tree())]).fit(X, Y)
        return model.steps_[0][1].transformer_.components_

    assert np.array_equal(components(1), components(1))
    assert not np.array_equal(components(1), components(2))


def test_callers_steps_are_never_fitted() -> None:
    model = ForgetPipeline(PIPELINES["mixed"]).fit(X, Y, ids=IDS)
    model.forget(["p03"])
    assert not any(
        hasattr(step, "seed_") or hasattr(step, "transformer_") for _, step in model.steps
    )


@pytest.mark.parametrize(
    "make",
    [lambda X: pd.DataFrame(X, columns=list("abc")), lambda X: pl.DataFrame(X, schema=list("abc"))],
)
def test_frames(make: Any) -> None:
    model = pipeline("scaler that forgets").fit(make(X), Y, ids=IDS)
    model.forget(["p03"])
    rows, labels, ids = without(["p03"])
    assert (
        model.digest() == pipeline("scaler that forgets").fit(make(rows), labels, ids=ids).digest()
    )
    assert vars(model)["feature_names_in_"].tolist() == list("abc")
    assert np.array_equal(model.predict(make(X)), fitted("scaler that forgets", ["p03"]).predict(X))


def test_an_encoder_that_forgets_loses_the_category() -> None:
    town = np.where(IDS == "p02", "secret-town", "rome")
    frame = pd.DataFrame({"town": pd.Categorical(town)})
    encoder = naive(OneHotEncoder(handle_unknown="ignore"))
    model = ForgetPipeline([("encode", encoder), ("model", tree())]).fit(frame, Y, ids=IDS)
    model.forget(["p02"])
    assert b"secret-town" not in pickle.dumps(model)
    assert model.predict(frame).shape == (20,)


def test_texts_through_a_stateless_step() -> None:
    texts = np.array([f"word{row % 4} more{row % 3}" for row in range(20)])
    steps = [("hash", HashingVectorizer(n_features=16)), ("model", tree())]
    model = ForgetPipeline(steps).fit(list(texts), Y, ids=IDS)
    model.forget(["p03"])
    _, labels, ids = without(["p03"])
    fresh = ForgetPipeline(steps).fit(texts[IDS != "p03"], labels, ids=ids)
    assert model.digest() == fresh.digest()


def test_answers_are_those_of_a_plain_pipeline() -> None:
    model = ForgetPipeline(
        [("scale", naive(StandardScaler())), ("model", naive(LogisticRegression()))]
    ).fit(X, Y)
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    assert np.array_equal(model.predict(X), plain.predict(X))
    assert np.allclose(model.predict_proba(X), plain.predict_proba(X))
    assert np.allclose(model.decision_function(X), plain.decision_function(X))
    assert model.score(X, Y) == plain.score(X, Y)
    assert not hasattr(model, "transform")


def test_a_pipeline_of_transformers_transforms() -> None:
    steps = [("norm", Normalizer()), ("scale", naive(StandardScaler()))]
    model = ForgetPipeline(steps).fit(X)
    plain = make_pipeline(Normalizer(), StandardScaler()).fit(X)
    assert np.allclose(model.transform(X), plain.transform(X))
    assert not hasattr(model, "predict")
    assert not is_classifier(model)
    assert not is_regressor(model)


def test_parameters_of_steps_by_their_names() -> None:
    model = pipeline("scaler that forgets")
    params = model.get_params()
    assert params["model__estimator__max_features"] == 1
    assert params["scale"] is model.steps[0][1]
    assert set(model.get_params(deep=False)) == {"steps", "verbose"}
    model.set_params(model__estimator__max_features=2, scale="passthrough")
    assert model.steps[0] == ("scale", "passthrough")
    assert model.steps[1][1].estimator.max_features == 2
    with pytest.raises(ValueError, match="Invalid parameter 'nope'"):
        model.set_params(nope=1)


def test_replacing_a_step_leaves_the_callers_list_alone() -> None:
    steps = [("scale", naive(StandardScaler())), ("model", tree())]
    ForgetPipeline(steps).set_params(scale="passthrough")
    assert isinstance(steps[0][1], NaiveUnlearner)


@pytest.mark.parametrize(
    "change",
    [
        {"model__estimator__max_depth": 1},
        {"scale": "passthrough"},
        {"scale__estimator__with_mean": False},
    ],
)
def test_set_params_after_fit_is_refused(change: dict[str, Any]) -> None:
    model = fitted("scaler that forgets").set_params(**change)
    with pytest.raises(ChangedParametersError, match="ForgetPipeline were changed after fit"):
        model.forget(["p03"])


def test_changes_of_a_fitted_step_are_refused_too() -> None:
    model = fitted("stateless")
    model.steps_[-1][1].set_params(estimator__max_depth=1)
    with pytest.raises(ChangedParametersError, match="NaiveUnlearner were changed after fit"):
        model.forget(["p03"])


@pytest.mark.parametrize("name", ["mixed", "stateless", "sisa at the end"])
def test_save_load_then_forget(name: str, tmp_path: Path) -> None:
    model = fitted(name)
    letheon.save(model, tmp_path / "model.letheon")
    again = letheon.load(tmp_path / "model.letheon")
    assert again.digest() == model.digest()
    again.forget(["p03"])
    assert again.digest() == fitted(name, ["p03"]).digest()
    assert model.n_rows_ == 20


def test_search_and_cross_validation() -> None:
    grid = {"model__estimator__max_depth": [1, 2], "scale__estimator__with_mean": [True]}
    search = GridSearchCV(pipeline("scaler that forgets"), grid, cv=2).fit(X, Y, ids=IDS)
    assert search.best_estimator_.forget(["p03"]).n_rows == (IDS == "p03").sum()
    assert cross_val_score(pipeline("stateless"), X, Y, cv=2).shape == (2,)


def test_metadata_routing_carries_ids() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model: Any = pipeline("stateless")
        model.set_fit_request(ids=True)
        search = GridSearchCV(model, {"model__estimator__max_depth": [1]}, cv=2).fit(X, Y, ids=IDS)
    assert search.best_estimator_.ids_.tolist() == NAMES


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ids": [1]}, IdsLengthError, "got 1 ids for 20 rows"),
        ({"y": Y[:3]}, ValueError, "inconsistent numbers of samples"),
        ({"y": None}, ValueError, "requires y"),
    ],
)
def test_a_refused_fit_leaves_the_old_model(
    arguments: Any, error: type[Exception], message: str
) -> None:
    model = fitted("scaler that forgets")
    before = model.digest()
    data = {"y": Y, "ids": IDS, **arguments}
    with pytest.raises(error, match=message):
        model.fit(X, data["y"], ids=data["ids"])
    assert model.digest() == before


def test_unfitted_pipelines_say_so() -> None:
    model = pipeline("mixed")
    for name in ("steps_", "classes_", "n_rows_", "ids_", "guarantee_"):
        with pytest.raises(NotFittedError):
            getattr(model, name)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_claim_is_that_of_the_last_step() -> None:
    model = fitted("sisa at the end")
    assert model.guarantee_ == model.steps_[-1][1].guarantee_
    assert model.declare_tuning("by hand").guarantee_.tuning == "by hand"


class Estimate(NaiveUnlearner):
    """A step whose removal is approximate."""

    facts: ClassVar[MethodFacts] = replace(
        NaiveUnlearner.facts,
        exact=False,
        certificate="empirical",
        requests="adaptive",
        releases="every-version",
    )


@pytest.mark.parametrize(
    ("early", "last", "exact", "requests"),
    [
        (naive(StandardScaler()), tree(), True, "oblivious"),
        (Estimate(StandardScaler()), tree(), False, "oblivious"),
        (Normalizer(), Estimate(DecisionTreeClassifier()), False, "adaptive"),
        (naive(StandardScaler()), Estimate(DecisionTreeClassifier()), False, "adaptive"),
    ],
)
def test_facts_are_those_of_the_steps(early: Any, last: Any, exact: bool, requests: str) -> None:
    facts = ForgetPipeline([("early", early), ("last", last)]).facts
    assert (facts.exact, facts.requests, facts.releases) == (
        exact,
        requests,
        last.facts.releases,
    )
    assert facts.method == ForgetPipeline.facts.method == "pipeline"
    assert ForgetPipeline.facts.exact


def test_a_new_fit_drops_the_note_on_tuning() -> None:
    model = fitted("stateless").declare_tuning("by hand")
    assert model.fit(X, Y).guarantee_.tuning is None


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_a_frame_to_predict_is_not_converted_as_if_kept(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = pipeline("alone").fit(make(X), Y, ids=IDS)
    for module in (compose_module, naive_module, tables_module):
        monkeypatch.setattr(module, "hold_table", lambda _: pytest.fail("X was held"))
    assert model.predict(make(X[:1])).shape == (1,)
    with pytest.raises(pytest.fail.Exception, match="X was held"):
        model.fit(make(X), Y)


def test_forget_works_for_whatever_forgets() -> None:
    model = fitted("stateless")
    receipt = letheon.forget(model, ["p03"], digest=True)
    assert receipt.n_ids == 1
    assert receipt.digest_after == model.digest()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Pipeline([("m", LogisticRegression())]),
            r"plain Pipeline cannot forget.*convert\(pipeline\).*SISAClassifier\(pipeline\)",
        ),
        (
            LogisticRegression(),
            r"LogisticRegression cannot forget\. Convert it before fitting.*NaiveUnlearner\(Log",
        ),
        (make_pipeline(Ridge()), r"SISARegressor\(pipeline\) or NaiveUnlearner\(pipeline\)$"),
        (GridSearchCV(Ridge(), {"alpha": [1]}), r"convert\(GridSearchCV.*ForgetSearchCV\(est"),
        (make_pipeline(GridSearchCV(Ridge(), {})), r"keeps wall times.*letheon\.convert makes"),
        ({}, "dict cannot forget; expected a model of letheon"),
    ],
)
def test_forget_says_what_to_do_for_the_rest(model: Any, message: str) -> None:
    with pytest.raises(CannotForgetError, match=message):
        letheon.forget(model, ["p03"])


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(letheon.convert(GridSearchCV(Ridge(), {"alpha": [1, 2]}, cv=2)), id="convert"),
        pytest.param(
            letheon.ForgetSearchCV(NaiveUnlearner(Ridge()), {"estimator__alpha": [1, 2]}, cv=2),
            id="search",
        ),
        pytest.param(
            letheon.convert(make_pipeline(GridSearchCV(Ridge(), {"alpha": [1]}, cv=2))),
            id="convert-pipeline",
        ),
        pytest.param(SISARegressor(make_pipeline(Ridge()), n_shards=2), id="shards"),
    ],
)
def test_what_forget_suggests_can_forget(model: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(12, 2))
    ids = [f"p{row:02d}" for row in range(12)]
    assert letheon.forget(model.fit(rows, rows[:, 0], ids=ids), ["p03"]).n_rows == 1


@parametrize_with_checks(
    [
        ForgetPipeline(
            [
                ("scale", NaiveUnlearner(StandardScaler())),
                ("model", NaiveUnlearner(LogisticRegression())),
            ]
        ),
        ForgetPipeline([("norm", Normalizer()), ("model", NaiveUnlearner(Ridge()))]),
        DataIndependent(Normalizer()),
    ]
)
def test_sklearn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)
