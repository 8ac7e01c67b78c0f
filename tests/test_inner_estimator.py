"""How wrappers treat the estimator inside: seeds everywhere, honest errors, its own tags."""

import random
import threading
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import BaggingClassifier, HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, SGDClassifier
from sklearn.model_selection import KFold
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import QuantileTransformer
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import get_tags
from threadpoolctl import threadpool_info, threadpool_limits

from letheon import NaiveUnlearner, SISAClassifier
from letheon.exceptions import CannotForgetError, CorruptFileError, EmptyModelError
from letheon.inner_estimator import (
    SeedSlots,
    clone_with_seed,
    fix_environment,
    inherit_tags,
    inner_training,
    iter_estimators,
    refuse_nested_files,
    remember_features,
    require_acceptable,
    translate_fit_errors,
    versions_of,
)
from letheon.seeds import Purpose, library_seed

NESTED = make_pipeline(
    QuantileTransformer(),
    BaggingClassifier(make_pipeline(DecisionTreeClassifier()), random_state=5),
)
PLACES = {
    "steps__0__1__random_state": "quantiletransformer__random_state",
    "steps__1__1__random_state": "baggingclassifier__random_state",
    "steps__1__1__estimator__steps__0__1__random_state": (
        "baggingclassifier__estimator__decisiontreeclassifier__random_state"
    ),
}


class Committee(ClassifierMixin, BaseEstimator):
    """Classifiers in a plain list and in a dict, of which `get_params` tells nothing."""

    def __init__(self, members: Any = (), chairs: Any = None) -> None:
        self.members = members
        self.chairs = chairs

    def fit(self, X: Any, y: Any) -> "Committee":
        estimators = [*self.members, *(self.chairs or {}).values()]
        self.classes_ = np.unique(y)
        self.votes_ = [clone(member).fit(X, y).coef_ for member in estimators]
        return self


def seeds_in(estimator: Any) -> dict[str, Any]:
    params = estimator.get_params(deep=True).items()
    return {name: value for name, value in params if name.rpartition("__")[2] == "random_state"}


def test_every_nested_seed_is_set_by_its_own_place() -> None:
    seeds = seeds_in(clone_with_seed(NESTED, 7, Purpose.STAGE, 2, 3))
    assert seeds == {
        name: library_seed(7, Purpose.STAGE, 2, 3, place) for place, name in PLACES.items()
    }
    assert len(set(seeds.values())) == 3


def test_names_of_steps_may_not_matter_but_places_do() -> None:
    one, two = (Pipeline([(name, QuantileTransformer())]) for name in ("first", "second"))
    seeds = [
        seeds_in(clone_with_seed(model, 7, Purpose.STAGE)).popitem()[1] for model in (one, two)
    ]
    assert seeds[0] == seeds[1] == library_seed(7, Purpose.STAGE, "steps__0__1__random_state")


def test_seeds_in_lists_and_dicts_are_set() -> None:
    model = Committee([SGDClassifier(), SGDClassifier()], {"head": NESTED})
    fresh = clone_with_seed(model, 7, Purpose.STAGE)
    heads = [f"chairs__head__{place}" for place in PLACES]
    places = [*(f"members__{n}__random_state" for n in (0, 1)), *heads]
    seeds = [part.random_state for part in fresh.members]
    seeds += [seeds_in(fresh.chairs["head"])[name] for name in PLACES.values()]
    assert seeds == [library_seed(7, Purpose.STAGE, place) for place in places]
    assert model.members[0].random_state is None
    assert NESTED[1].random_state == 5


def test_parts_are_found_wherever_they_are_nested() -> None:
    inner = SGDClassifier()
    outer = Committee([inner, ("a", [inner])], {"b": Committee([inner]), "none": None})
    parts = {part.path: part for part in iter_estimators(outer)}
    own = {"", "members__0__", "members__1__1__0__", "chairs__b__", "chairs__b__members__0__"}
    assert set(parts) == own
    assert parts["members__1__1__0__"].estimator is inner
    assert parts["chairs__b__"].params == outer.chairs["b"].get_params(deep=False)


@pytest.mark.parametrize("hold", [lambda part: Committee([part]), make_pipeline])
def test_files_of_a_nested_model_are_refused(hold: Any) -> None:
    with pytest.raises(CannotForgetError, match=r"SISAClassifier inside another.*checkpoint_dir"):
        refuse_nested_files(hold(SISAClassifier(SGDClassifier(), checkpoint_dir="somewhere")))
    refuse_nested_files(hold(SISAClassifier(SGDClassifier())))


def test_versions_are_those_of_the_packages_inside() -> None:
    assert versions_of(NESTED) == {}

    class Foreign(BaseEstimator):
        __module__ = "joblib.somewhere"

    class Homeless(BaseEstimator):
        __module__ = "no_such_package.somewhere"

    assert versions_of(Committee([Foreign(), Homeless()])) == {"joblib": version("joblib")}


def draw() -> tuple[float, float]:
    return np.random.rand(), random.random()


def global_state() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()
    return kind, tuple(keys), *rest, random.getstate(), tuple(sklearn.get_config().items())


def test_global_generators_are_seeded_inside() -> None:
    seen = []
    for seed in (1, 1, 2):
        draw()
        with fix_environment({}, seed):
            seen.append(draw())
    assert seen[0] == seen[1]
    assert not set(seen[0]) & set(seen[2])


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_generators_and_settings_of_the_caller_come_back(error: Any) -> None:
    before = global_state()
    with (
        suppress(RuntimeError, KeyboardInterrupt),
        fix_environment({"transform_output": "pandas"}, 1),
    ):
        draw()
        assert global_state() != before
        if error is not None:
            raise error
    assert global_state() == before


def test_training_is_sequential_with_one_thread_and_the_settings_of_the_fit() -> None:
    def workers() -> int:
        pool: Any = joblib.Parallel(n_jobs=2, prefer="threads")
        names = pool(joblib.delayed(lambda: threading.current_thread().name)() for _ in range(8))
        return len({name for name in names if name != "MainThread"})

    with threadpool_limits(2), fix_environment({"transform_output": "pandas"}, 0):
        assert workers() == 0
        assert {library["num_threads"] for library in threadpool_info()} == {1}
        assert sklearn.get_config()["transform_output"] == "pandas"
    assert workers() > 0
    assert sklearn.get_config()["transform_output"] == "default"


def test_models_that_train_in_threads_take_turns() -> None:
    inside, most = [0], [0]

    def train() -> None:
        with (
            fix_environment({}, 0),
            fix_environment({}, 1),
        ):  # nested models
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            threading.Event().wait(0.01)
            inside[0] -= 1

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1]


@pytest.mark.parametrize(
    "other", [(8, Purpose.STAGE, 2), (7, Purpose.RETRAIN, 2), (7, Purpose.STAGE, 3)]
)
def test_seeds_depend_on_seed_purpose_and_part(other: Any) -> None:
    first = seeds_in(clone_with_seed(NESTED, 7, Purpose.STAGE, 2))
    assert not set(first.values()) & set(seeds_in(clone_with_seed(NESTED, *other)).values())


def test_a_generator_given_by_the_caller_is_neither_used_nor_changed() -> None:
    rng = np.random.RandomState(0)
    before = rng.get_state(legacy=False)["state"]["key"].copy()
    model = SGDClassifier(random_state=rng)
    assert isinstance(clone_with_seed(model, 1, Purpose.RETRAIN).random_state, int)
    assert model.random_state is rng
    assert np.array_equal(rng.get_state(legacy=False)["state"]["key"], before)


def test_splitters_are_replaced_by_seeded_copies() -> None:
    splitter = KFold(3, shuffle=True)
    model = LogisticRegressionCV(cv=splitter)
    SeedSlots(model).fill(1, Purpose.RETRAIN)
    assert model.cv is not splitter
    assert splitter.random_state is None
    assert model.cv.random_state == library_seed(1, Purpose.RETRAIN, "cv")


def test_clone_is_unfitted_and_the_original_untouched() -> None:
    fitted = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    assert not hasattr(clone_with_seed(fitted, 0, Purpose.RETRAIN), "coef_")
    assert hasattr(fitted, "coef_")
    assert fitted.random_state is None


@pytest.mark.parametrize("wrap", [lambda inner: inner, make_pipeline, BaggingClassifier])
def test_frozen_parts_are_refused(wrap: Any) -> None:
    fitted = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(CannotForgetError, match="FrozenEstimator, which keeps what it learned"):
        clone_with_seed(wrap(FrozenEstimator(fitted)), 0, Purpose.RETRAIN)


@pytest.mark.parametrize("error", [ValueError, IndexError, TypeError, RuntimeError])
def test_a_refusal_to_fit_becomes_empty_model_error(error: type[Exception]) -> None:
    with (
        pytest.raises(
            EmptyModelError, match="remaining rows would fail, so nothing was changed: one class"
        ) as info,
        translate_fit_errors(),
        inner_training("step 'a'"),
    ):
        raise error("one class")
    assert isinstance(info.value.__cause__, error)
    assert info.value.__cause__.__notes__ == ["raised by the estimator inside step 'a'"]


@pytest.mark.parametrize(
    "error", [MemoryError, KeyboardInterrupt, OSError, CorruptFileError, EmptyModelError]
)
def test_accidents_stay_what_they_are(error: type[BaseException]) -> None:
    with (
        pytest.raises(error) as info,
        translate_fit_errors(),
        inner_training("it"),
    ):
        raise error("accident")
    assert type(info.value) is error
    assert str(info.value) == "accident"


@pytest.mark.parametrize("error", [ValueError, IndexError, RuntimeError])
def test_errors_from_elsewhere_stay_what_they_are(error: type[Exception]) -> None:
    # Our own mistakes must not pass for rows that cannot be fitted.
    with pytest.raises(error, match=r"^accident$"), translate_fit_errors():
        raise error("accident")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [np.array, sp.csr_array])
def test_non_finite_rows_are_refused_where_the_estimator_would(bad: float, kind: Any) -> None:
    X = kind([[1.0, bad]])
    with pytest.raises(ValueError, match=r"LogisticRegression does not accept missing|infinity"):
        require_acceptable(LogisticRegression(), X)


def test_missing_values_pass_where_the_estimator_takes_them() -> None:
    require_acceptable(HistGradientBoostingClassifier(), np.array([[np.nan]]))
    require_acceptable(LogisticRegression(), np.array([["a text"]], object))
    with pytest.raises(ValueError, match="NaN"):
        require_acceptable(LogisticRegression(), np.array([[np.nan]]))


@pytest.mark.parametrize(
    "inner", [MultinomialNB(), HistGradientBoostingClassifier(), SGDClassifier()]
)
def test_tags_say_what_the_inner_estimator_takes(inner: Any) -> None:
    tags = inherit_tags(get_tags(BaseEstimator()), inner)
    own = get_tags(inner)
    assert tags.input_tags == own.input_tags
    assert tags.target_tags == own.target_tags
    assert tags.classifier_tags == own.classifier_tags


@pytest.mark.parametrize(
    ("X", "n_features"),
    [
        (np.zeros((2, 3)), 3),
        (sp.csr_array((2, 4)), 4),
        ([[1, 2]], 2),
        (np.array(["a", "b"]), None),
        (["a", "b"], None),
        (pd.Series(["a"]), None),
    ],
)
def test_features_are_counted_but_not_in_texts(X: Any, n_features: int | None) -> None:
    model = NaiveUnlearner(LogisticRegression())
    remember_features(model, X)
    assert getattr(model, "n_features_in_", None) == n_features


def test_feature_names_are_those_of_the_frame() -> None:
    model = NaiveUnlearner(LogisticRegression())
    remember_features(model, pd.DataFrame({"a": [1], "b": [2]}))
    assert vars(model)["feature_names_in_"].tolist() == ["a", "b"]
    remember_features(model, np.zeros((1, 2)))
    assert not hasattr(model, "feature_names_in_")
