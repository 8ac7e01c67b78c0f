"""Aggregation against a plain reference that loops over shards and classes."""

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from letheon import SISAClassifier, SISARegressor
from letheon.sharded._predictor import combine_shares
from letheon.sharded._shards import ConstantModel
from tests.sharded.people import make_people


class Says:
    """A model that always gives the same probabilities."""

    def __init__(self, **shares: float) -> None:
        self.classes_ = np.array(sorted(shares))
        self._shares = [shares[name] for name in sorted(shares)]

    def predict_proba(self, X: Any) -> Any:
        return np.tile(self._shares, (len(X), 1))

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.classes_[np.argmax(self._shares)])


CLASSES = np.array(["ash", "elm", "oak"])
X = np.zeros((2, 1))


def test_a_class_that_a_shard_never_saw_gets_no_probability_from_it() -> None:
    models = [Says(ash=0.5, elm=0.5), Says(elm=0.2, oak=0.8), ConstantModel("oak")]
    shares = combine_shares(models, "mean", CLASSES, X)
    assert shares[0] == pytest.approx([1 / 6, 0.7 / 3, 1.8 / 3])


def test_votes_count_labels_only() -> None:
    models = [Says(ash=0.51, elm=0.49), Says(ash=0.1, elm=0.9), ConstantModel("elm")]
    assert combine_shares(models, "vote", CLASSES, X)[1] == pytest.approx([1 / 3, 2 / 3, 0])


def test_a_tie_is_won_by_the_lowest_class() -> None:
    people = make_people(40)
    model = SISAClassifier(GaussianNB(), n_shards=2, aggregation="vote", random_state=0)
    model.fit(*people[:2], ids=people.ids)
    shares = model.predict_proba(people.X)
    tied = np.isclose(shares.max(axis=1), 0.5)
    assert tied.any()
    assert (
        model.predict(people.X)[tied] == model.classes_[(shares[tied] > 0).argmax(axis=1)]
    ).all()


@pytest.mark.parametrize("aggregation", ["mean", "vote"])
def test_ensemble_equals_a_loop_over_its_models(aggregation: str) -> None:
    people = make_people(60)
    model = SISAClassifier(
        RandomForestClassifier(3), n_shards=4, aggregation=aggregation, random_state=0
    ).fit(*people[:2], ids=people.ids)
    total = np.zeros((len(people.X), 3))
    for inner in model.estimators_:
        if aggregation == "mean":
            total += inner.predict_proba(people.X)
        else:
            total += inner.predict(people.X)[:, None] == model.classes_[None, :]
    assert model.predict_proba(people.X) == pytest.approx(total / 4)


def test_without_probabilities_the_mean_is_over_votes() -> None:
    people = make_people(60)
    mean, vote = (
        SISAClassifier(LinearSVC(), n_shards=3, aggregation=how, random_state=0)
        .fit(*people[:2], ids=people.ids)
        .predict_proba(people.X)
        for how in ("mean", "vote")
    )
    assert np.array_equal(mean, vote)


@pytest.mark.parametrize(("how", "combine"), [("mean", np.mean), ("median", np.median)])
def test_regression_takes_mean_or_median(how: str, combine: Any) -> None:
    people = make_people(60)
    model = SISARegressor(LinearRegression(), n_shards=3, aggregation=how, random_state=0)
    model.fit(people.X, people.X[:, 0], ids=people.ids)
    votes = [inner.predict(people.X) for inner in model.estimators_]
    assert model.predict(people.X) == pytest.approx(combine(votes, axis=0))


def test_regression_with_several_outputs() -> None:
    people = make_people(40)
    model = SISARegressor(LinearRegression(), n_shards=2, random_state=0)
    model.fit(people.X, people.X[:, :2], ids=people.ids)
    assert model.predict(people.X).shape == (len(people.X), 2)


def test_one_class_and_empty_shards_answer_as_they_should() -> None:
    X, y = np.arange(4.0)[:, None], np.array(["a", "a", "b", "b"])
    with pytest.warns(UserWarning, match="some shards stay empty"):
        model = SISAClassifier(DecisionTreeClassifier(), n_shards=500, random_state=0).fit(X, y)
    assert len(model.estimators_) == 4
    assert all(isinstance(inner, ConstantModel) for inner in model.estimators_)
    assert model.predict_proba(X) == pytest.approx(np.full((4, 2), 0.5))
