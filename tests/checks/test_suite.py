"""Every forgetting estimator of the package passes the public suite."""

from typing import Any

import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from letheon import ForgetPipeline, NaiveUnlearner, SISAClassifier, SISARegressor
from letheon.checks import check_forgetting_estimator, parametrize_with_checks, yield_checks

HONEST = [
    NaiveUnlearner(LogisticRegression(max_iter=1000)),
    NaiveUnlearner(StandardScaler()),
    NaiveUnlearner(HistGradientBoostingClassifier(max_iter=3)),
    SISAClassifier(DecisionTreeClassifier(), n_shards=3),
    SISAClassifier(RandomForestClassifier(3), n_shards=2, aggregation="vote"),
    SISAClassifier(SGDClassifier(loss="log_loss"), n_shards=2, n_slices=3, epochs=4),
    SISAClassifier(MLPClassifier((4,), learning_rate_init=0.1), n_shards=2, n_slices=2, epochs=2),
    SISAClassifier(GaussianNB(), n_shards=2, n_slices=3, stage_data="new"),
    SISAClassifier(make_pipeline(StandardScaler(), LinearSVC()), n_shards=3),
    SISARegressor(SGDRegressor(), n_shards=2, n_slices=3, epochs=4),
    SISARegressor(Ridge(), n_shards=3, aggregation="median"),
    ForgetPipeline(
        [
            ("scale", NaiveUnlearner(StandardScaler(), random_state=0)),
            ("model", SISAClassifier(DecisionTreeClassifier(), random_state=0)),
        ]
    ),
    ForgetPipeline(
        [
            ("length", Normalizer()),
            ("model", SISAClassifier(DecisionTreeClassifier(), random_state=0)),
        ]
    ),
]
# Its canary row is large, and a linear model without a scaler overflows on it.
pytestmark = pytest.mark.filterwarnings("ignore:.*(overflow|invalid value|ConvergenceWarning)")


@parametrize_with_checks(HONEST)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)


def test_checkpoints_on_disk_pass_too(tmp_path: Any) -> None:
    model = SISAClassifier(
        GaussianNB(), n_shards=2, n_slices=3, stage_data="new", checkpoint_dir=tmp_path
    )
    check_forgetting_estimator(model)


def test_regressors_are_not_asked_about_classes() -> None:
    names = [check.__name__ for check in yield_checks(SISARegressor(Ridge()))]
    assert "check_forget_last_of_class" not in names
    assert "check_learn_equals_fit" in names
