"""The goal of tuning, and folds in which all rows of a person stay together."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from letheon import SISAClassifier
from letheon.datasets import Requests
from letheon.evaluation import CrossValidation, LearningProblem
from letheon.select import Candidate, Need, Tolerances, choose

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3))
Y = (X[:, 0] > 0).astype(int)
PEOPLE = np.repeat(np.arange(80), 3)


def test_rows_of_a_person_are_in_one_fold() -> None:
    problem = LearningProblem.from_args(LogisticRegression(), (X, Y, PEOPLE), 0.25, None, 0)
    for train, held_out in CrossValidation(problem, cv=4, seed=0)._folds:
        ids = problem.train.ids
        assert not set(ids[train].tolist()) & set(ids[held_out].tolist())


def test_tuning_aims_at_the_ordinary_score_less_the_tolerance() -> None:
    """The ordinary model is always right in cross-validation as well: the goal is 1 - 0.125."""
    comparison = choose(
        (X, Y, PEOPLE),
        need=Need(guarantee="exact"),
        tolerances=Tolerances(effectiveness=0.125),
        candidates=[
            Candidate(SISAClassifier(DecisionTreeClassifier()), efficiency={"n_shards": [1, 2]})
        ],
        ordinary=DecisionTreeClassifier(max_depth=1, random_state=0),
        requests=Requests(n=3),
        cv=3,
    )
    ((tuning,),) = comparison.tunings.values()
    stump = CrossValidation(
        LearningProblem.from_args(LogisticRegression(), (X, Y, PEOPLE), None, None, 0),
        cv=3,
        seed=0,
    ).score(DecisionTreeClassifier(max_depth=1, random_state=0), with_ids=False)
    assert tuning.goal == pytest.approx(stump - 0.125)
