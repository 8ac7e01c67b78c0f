"""SISA as users meet it: settings, kinds of input, scikit-learn's conventions, errors."""

import threading
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import letheon
from letheon import SISAClassifier, SISARegressor
from letheon.exceptions import (
    EmptyModelError,
    IdsLengthError,
    ShardingWarning,
    UnknownIdError,
    UnsupportedStateError,
)
from tests.sharded.people import make_people

PEOPLE = make_people(30)


def tree(**settings: Any) -> SISAClassifier:
    return SISAClassifier(DecisionTreeClassifier(), n_shards=3, random_state=0, **settings)


# Without rows of weight 0 the default ids of the other rows change, and so do their shards.
OTHER_SHARDS = {
    f"check_sample_weight_equivalence_on_{kind}_data": "other ids are in other shards"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(
    [
        SISAClassifier(LogisticRegression()),
        SISARegressor(Ridge()),
        SISAClassifier(SGDClassifier(loss="log_loss"), n_shards=2, n_slices=2, epochs=3),
    ],
    expected_failed_checks=lambda _: OTHER_SHARDS,
)
@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:Can't check dok sparse matrix:UserWarning")
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


def test_grid_search_takes_ids() -> None:
    search = GridSearchCV(
        tree(), {"n_shards": [1, 3], "estimator__max_depth": [1, 3]}, n_jobs=2, cv=2
    )
    search.fit(PEOPLE.X, PEOPLE.y, ids=PEOPLE.ids)
    best = search.best_estimator_
    best.forget([4])
    assert 4 not in best.ids_
    assert best.n_rows_ == (PEOPLE.ids != 4).sum()


def test_cross_validation_and_clone_work() -> None:
    assert len(cross_val_score(tree(), PEOPLE.X, PEOPLE.y, cv=3)) == 3
    assert clone(tree()).get_params()["n_shards"] == 3


@pytest.mark.parametrize("inner", [SVC(), GradientBoostingClassifier(n_estimators=3)])
def test_sharding_works_with_any_estimator(inner: Any) -> None:
    model = SISAClassifier(inner, n_shards=2, random_state=0).fit(*PEOPLE[:2], ids=PEOPLE.ids)
    model.forget([0, 1])
    rest = PEOPLE.without([0, 1])
    fresh = SISAClassifier(inner, n_shards=2, random_state=0).fit(*rest[:2], ids=rest.ids)
    assert model.digest() == fresh.digest()


def frames() -> dict[str, Any]:
    columns = {
        "a": PEOPLE.X[:, 0],
        "b": PEOPLE.X[:, 1],
        "city": np.array(["rome", "oslo", "lima"])[PEOPLE.ids % 3],
    }
    return {
        "pandas": pd.DataFrame(columns),
        "pandas-category": pd.DataFrame(columns).astype({"city": "category"}),
        "polars": pl.DataFrame(columns),
        "polars-enum": pl.DataFrame(columns).cast({"city": pl.Enum(["rome", "oslo", "lima"])}),
    }


@pytest.mark.parametrize("kind", frames())
def test_frames_and_string_labels(kind: str) -> None:
    frame, labels = frames()[kind], np.array(["no", "yes", "perhaps"])[PEOPLE.y]
    encoder = make_column_transformer(
        (OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["city"]),
        remainder="passthrough",
    )
    inner = make_pipeline(encoder, DecisionTreeClassifier())
    model = SISAClassifier(inner, n_shards=2, random_state=0).fit(frame, labels, ids=PEOPLE.ids)
    model.forget([5, 8])
    keep = ~np.isin(PEOPLE.ids, [5, 8])
    rest = frame[keep] if kind.startswith("pandas") else frame.filter(pl.Series(keep))
    fresh = clone(model).fit(rest, labels[keep], ids=PEOPLE.ids[keep])
    assert model.digest() == fresh.digest()
    assert set(model.predict(frame)) <= {"no", "yes", "perhaps"}
    assert vars(model)["feature_names_in_"].tolist() == ["a", "b", "city"]


def test_a_forgotten_category_leaves_the_frame() -> None:
    frame = pd.DataFrame({"city": pd.Categorical(["rome", "oslo", "rome", "rome"]), "n": range(4)})
    inner = make_pipeline(
        make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["city"])),
        DecisionTreeClassifier(),
    )
    model = SISAClassifier(inner, n_shards=1, random_state=0).fit(frame, [0, 1, 0, 1])
    model.forget([1])
    stored = model.ensemble_.shards[0].rows.X
    assert stored["city"].cat.categories.tolist() == ["rome"]


def test_sparse_rows_and_texts() -> None:
    words = ["cheap pills", "see you soon", "pills pills", "lunch soon", "cheap lunch", "you see"]
    labels = [1, 0, 1, 0, 1, 0]
    inner = make_pipeline(CountVectorizer(), MultinomialNB())
    model = SISAClassifier(inner, n_shards=2, random_state=3).fit(words, labels)
    model.forget([2])
    fresh = SISAClassifier(inner, n_shards=2, random_state=3)
    rest = [0, 1, 3, 4, 5]
    fresh.fit([words[i] for i in rest], [labels[i] for i in rest], ids=rest)
    assert model.digest() == fresh.digest()
    counts = sp.csr_array(np.abs(PEOPLE.X).round())
    sparse = SISAClassifier(
        MultinomialNB(), n_shards=2, n_slices=3, stage_data="new", random_state=0
    ).fit(counts, PEOPLE.y, ids=PEOPLE.ids)
    sparse.forget([7])
    keep = PEOPLE.ids != 7
    again = clone(sparse).fit(counts[keep], PEOPLE.y[keep], ids=PEOPLE.ids[keep])
    assert sparse.digest() == again.digest()


@pytest.mark.parametrize(
    "inner", [DecisionTreeClassifier(), RandomForestClassifier(2, warm_start=True)]
)
def test_slices_need_partial_fit(inner: Any) -> None:
    with pytest.raises(ValueError, match="partial_fit") as caught:
        SISAClassifier(inner, n_slices=3).fit(*PEOPLE[:2])
    hint = "warm_start is not enough" in str(caught.value)
    assert hint == ("warm_start" in inner.get_params())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"n_shards": 0}, ValueError, "n_shards=0"),
        ({"n_shards": 2.5}, TypeError, "n_shards=2.5"),
        ({"n_slices": True}, TypeError, "n_slices=True"),
        ({"aggregation": "max"}, ValueError, "aggregation='max'"),
        ({"stage_data": "old"}, ValueError, "stage_data"),
        ({"estimator": Ridge()}, TypeError, "not a classifier"),
        ({"estimator": GaussianNB(), "n_slices": 3}, ValueError, "see each row once"),
        ({"estimator": GaussianNB(), "epochs": 2, "stage_data": "new"}, ValueError, "row once"),
        ({"estimator": SGDClassifier(), "n_slices": 9, "epochs": 4}, ValueError, "epochs"),
        ({"random_state": -1}, ValueError, "-1"),
        ({"random_state": "seven"}, TypeError, "seven"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_trained(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = tree().set_params(**settings)
    with pytest.raises(error, match=message):
        model.fit(*PEOPLE[:2])
    assert not hasattr(model, "ensemble_")


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([1, 2], IdsLengthError),
        ([1.0] * len(PEOPLE.ids), TypeError),
        ([None] * len(PEOPLE.ids), TypeError),
        ([True] * len(PEOPLE.ids), TypeError),
        (["a"] * (len(PEOPLE.ids) - 1) + [float("nan")], TypeError),
        (["a"] * (len(PEOPLE.ids) - 1) + [7], TypeError),
    ],
)
def test_bad_ids_are_refused_by_fit_and_leave_a_fitted_model_alone(
    ids: Any, error: type[Exception]
) -> None:
    model = tree().fit(*PEOPLE[:2], ids=PEOPLE.ids)
    digest = model.digest()
    with pytest.raises(error):
        model.fit(*PEOPLE[:2], ids=ids)
    assert model.digest() == digest


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([99], UnknownIdError),
        (["1"], UnknownIdError),
        ([1, 99], UnknownIdError),
        (list(range(30)), EmptyModelError),
        ([1, None], TypeError),
        ([True], TypeError),
        ("abc", TypeError),
        (3, TypeError),
        ([0.5], TypeError),
    ],
)
def test_bad_requests_change_nothing(ids: Any, error: type[Exception]) -> None:
    model = tree().fit(*PEOPLE[:2], ids=PEOPLE.ids)
    digest = model.digest()
    with pytest.raises(error):
        model.forget(ids)
    assert model.digest() == digest


def test_unknown_ids_are_listed_up_to_five() -> None:
    model = tree().fit(*PEOPLE[:2], ids=PEOPLE.ids)
    with pytest.raises(UnknownIdError, match=r"\[100, 101, 102, 103, 104\] and 15 more.*ids_"):
        model.forget(range(100, 120))


def test_more_shards_than_people_is_a_warning() -> None:
    with pytest.warns(ShardingWarning, match=r"exceeds the number of people \(30\)"):
        SISAClassifier(GaussianNB(), n_shards=31).fit(*PEOPLE[:2], ids=PEOPLE.ids)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("n_classes", [1, 3])
def test_non_finite_rows_are_refused_wherever_they_fall(value: float, n_classes: int) -> None:
    people = make_people(30, n_classes=n_classes)
    people.X[3, 1] = value
    model = SISAClassifier(LogisticRegression(), n_shards=3)
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model.fit(*people[:2], ids=people.ids)
    assert not hasattr(model, "ensemble_")


def test_an_error_in_a_shard_says_which() -> None:
    people = make_people(12)
    people.X[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity") as caught:
        SISAClassifier(LogisticRegression(), n_shards=2).fit(*people[:2], ids=people.ids)
    assert "inside shard" in caught.value.__notes__[0]


class FailsOnSmallData(ClassifierMixin, BaseEstimator):
    """An estimator that needs at least `least` rows."""

    def __init__(self, least: int = 10) -> None:
        self.least = least

    def fit(self, X: Any, y: Any) -> "FailsOnSmallData":
        if len(X) < self.least:
            raise ValueError(f"only {len(X)} rows")
        self.classes_, self.mean_ = np.unique(y), np.mean(X, axis=0)
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.classes_[0])


def test_forgetting_fails_exactly_when_a_fresh_fit_would_and_changes_nothing() -> None:
    model = SISAClassifier(FailsOnSmallData(), n_shards=1, random_state=0)
    model.fit(*PEOPLE[:2], ids=PEOPLE.ids)
    for person in range(30):
        rest = PEOPLE.without(range(person + 1))
        digest = model.digest()
        if len(rest.ids) >= 10:
            model.forget([person])
            continue
        with pytest.raises(EmptyModelError, match="fit on the remaining rows would fail"):
            model.forget([person])
        assert model.digest() == digest
        break
    else:
        pytest.fail("the refusal never came")


def test_a_search_inside_is_refused_and_says_to_put_it_outside() -> None:
    inner = GridSearchCV(DecisionTreeClassifier(), {"max_depth": [1]})
    with pytest.raises(UnsupportedStateError, match="GridSearchCV"):
        SISAClassifier(inner).fit(*PEOPLE[:2])


def test_every_seed_inside_is_set_even_in_a_splitter() -> None:
    inner = CalibratedClassifierCV(
        RandomForestClassifier(2), cv=KFold(2, shuffle=True), ensemble=False
    )
    first, second = (
        SISAClassifier(inner, n_shards=1, random_state=5).fit(*PEOPLE[:2], ids=PEOPLE.ids)
        for _ in range(2)
    )
    assert first.digest() == second.digest()


def test_the_seed_of_a_model_reproduces_it() -> None:
    model = SISAClassifier(RandomForestClassifier(2)).fit(*PEOPLE[:2], ids=PEOPLE.ids)
    again = clone(model).set_params(random_state=model.seed_).fit(*PEOPLE[:2], ids=PEOPLE.ids)
    other = clone(model).fit(*PEOPLE[:2], ids=PEOPLE.ids)
    assert again.digest() == model.digest() != other.digest()


def test_the_receipt_counts_people_rows_and_work() -> None:
    model = SISAClassifier(GaussianNB(), n_shards=5, random_state=0).fit(
        *PEOPLE[:2], ids=PEOPLE.ids
    )
    shard = next(s for s in model.ensemble_.shards if 7 in s.rows.ids.to_list())
    receipt = model.forget([7, 7])
    owned = int((PEOPLE.ids == 7).sum())
    assert (receipt.n_ids, receipt.n_rows) == (1, owned)
    assert receipt.work == pytest.approx((len(shard.rows) - owned) / (len(PEOPLE.ids) - owned))
    assert receipt.rebuilt == {"shards": 1, "stages": 1}
    assert receipt.guarantee.requests == "oblivious"


def test_forgetting_from_many_threads_loses_no_request() -> None:
    model = tree().fit(*PEOPLE[:2], ids=PEOPLE.ids)
    threads = [threading.Thread(target=model.forget, args=([p],)) for p in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rest = PEOPLE.without(range(12))
    assert model.digest() == tree().fit(*rest[:2], ids=rest.ids).digest()


def test_saving_and_loading_keeps_states_and_forgets_on(tmp_path: Any) -> None:
    model = SISAClassifier(SGDClassifier(), n_shards=2, n_slices=3, epochs=4, random_state=0)
    model.fit(*PEOPLE[:2], ids=PEOPLE.ids)
    letheon.save(model, tmp_path / "m.letheon")
    copy = letheon.load(tmp_path / "m.letheon")
    assert copy.digest() == model.digest()
    assert copy.forget([1, 2]).work == model.forget([1, 2]).work
    assert copy.digest() == model.digest()


def test_a_model_of_a_users_own_estimator_needs_trust_to_load(tmp_path: Any) -> None:
    model = SISAClassifier(FailsOnSmallData(1), n_shards=2, random_state=0).fit(*PEOPLE[:2])
    letheon.save(model, tmp_path / "m.letheon")
    with pytest.raises(letheon.exceptions.UntrustedClassError, match="FailsOnSmallData"):
        letheon.load(tmp_path / "m.letheon")
    copy = letheon.load(tmp_path / "m.letheon", trusted=[FailsOnSmallData])
    assert copy.digest() == model.digest()


def test_learning_needs_ids() -> None:
    model = tree().fit(*PEOPLE[:2], ids=PEOPLE.ids)
    with pytest.raises(TypeError, match="one id per row"):
        model.learn(PEOPLE.X[:2], PEOPLE.y[:2], ids=None)
    assert model.n_rows_ == len(PEOPLE.ids)


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_an_estimator_that_works_in_place_cannot_spoil_the_rows(n_jobs: int | None) -> None:
    inner = make_pipeline(StandardScaler(copy=False), LogisticRegression())
    model = SISAClassifier(inner, n_shards=2, random_state=0, n_jobs=n_jobs)
    model.fit(*PEOPLE[:2], ids=PEOPLE.ids).forget([3])
    rest = PEOPLE.without([3])
    stored = np.vstack([shard.rows.X for shard in model.ensemble_.shards])
    assert np.array_equal(np.sort(stored, axis=0), np.sort(rest.X, axis=0))


def test_the_callers_array_is_neither_kept_nor_changed() -> None:
    X = PEOPLE.X.copy()
    model = tree().fit(X, PEOPLE.y, ids=PEOPLE.ids)
    digest = model.digest()
    X[:] = 0.0
    assert model.digest() == digest


def test_ids_are_sorted_and_do_not_show_who_shares_a_shard() -> None:
    model = tree().fit(*PEOPLE[:2], ids=PEOPLE.ids)
    assert model.ids_.tolist() == list(range(30))


def test_ids_of_another_kind_are_named_as_such() -> None:
    model = tree().fit(*PEOPLE[:2], ids=PEOPLE.ids)
    with pytest.raises(UnknownIdError, match="has int ids, but the request has str"):
        model.forget(["3"])


def test_parallel_loops_inside_do_not_change_the_result() -> None:
    inner = CalibratedClassifierCV(RandomForestClassifier(20, max_depth=2, n_jobs=2), cv=2)
    digests = {
        SISAClassifier(inner, n_shards=2, random_state=0).fit(*PEOPLE[:2], ids=PEOPLE.ids).digest()
        for _ in range(3)
    }
    assert len(digests) == 1


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_settings_of_scikit_learn_are_those_of_the_fit(n_jobs: int | None) -> None:
    inner = make_pipeline(StandardScaler(), LogisticRegression())
    rest = PEOPLE.without([3])
    with config_context(transform_output="pandas"):
        model = SISAClassifier(inner, n_shards=2, random_state=0, n_jobs=n_jobs)
        model.fit(*PEOPLE[:2], ids=PEOPLE.ids)
        fresh = SISAClassifier(inner, n_shards=2, random_state=0).fit(*rest[:2], ids=rest.ids)
    model.forget([3])
    assert model.digest() == fresh.digest()


def test_counting_learners_are_noticed_inside_others_too() -> None:
    with pytest.raises(ValueError, match="see each row once"):
        SISAClassifier(OneVsRestClassifier(MultinomialNB()), n_slices=3).fit(*PEOPLE[:2])


def test_wrong_columns_are_refused_even_by_constant_shards() -> None:
    model = SISAClassifier(GaussianNB(), n_shards=1).fit(PEOPLE.X, np.ones(len(PEOPLE.X)))
    with pytest.raises(ValueError, match="features"):
        model.predict(np.zeros((1, 99)))


def test_integer_targets_of_a_regression_are_floats() -> None:
    model = SISARegressor(Ridge(), n_shards=2, random_state=0)
    model.fit(PEOPLE.X, PEOPLE.y, ids=PEOPLE.ids)
    model.learn(PEOPLE.X[:1], [1.5], ids=[999])
    assert model.n_rows_ == len(PEOPLE.ids) + 1


def test_labels_of_mixed_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="several types: float and int"):
        tree().fit([[0.0], [1.0], [2.0]], [1, 2.0, 1])
