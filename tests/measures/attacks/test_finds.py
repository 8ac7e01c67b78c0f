"""Attacks find models that did not forget, and no others."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression

from letheon import NaiveUnlearner
from letheon.forest import DaREForestClassifier
from letheon.measures.attacks import (
    KLOM,
    RMIA,
    AttackResult,
    FineTuneOnly,
    ForgettingQuality,
    KeepsEverything,
    ULiRA,
)
from letheon.sharded import SISAClassifier
from tests.measures.attacks.canaries import learner, make_canaries, memoriser

PEOPLE = make_canaries()
FEW = make_canaries(90, n_canaries=12, n_features=60)

CHEATS = {
    "keeps everything": KeepsEverything(learner()),
    "keeps everything, no seed": KeepsEverything(memoriser()),
    "fine-tune only": FineTuneOnly(learner()),
}
HONEST = {
    "naive": NaiveUnlearner(learner()),
    "naive, no seed": NaiveUnlearner(memoriser()),
    "SISA": SISAClassifier(learner(), n_shards=2),
    "DaRE": DaREForestClassifier(n_estimators=5, max_depth=6),
}
MEMBERSHIP: dict[str, Any] = {
    "u-lira": ULiRA(n_shadows=24, n_retained=40),
    "rmia": RMIA(n_targets=8),
}
LAWS: dict[str, Any] = {
    "klom": KLOM(n_models=20, n_retained=50, n_population=50),
    "quality": ForgettingQuality(n_models=32, n_population=50),
}


def attacked(attack: Any, model: Any, people: Any = PEOPLE) -> tuple[AttackResult, ...]:
    result: tuple[AttackResult, ...] = attack.run(
        model, people.X, people.y, forget=people.forget, population=people.population
    )
    return result


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("attack", MEMBERSHIP)
def test_membership_attacks_find_those_who_kept(attack: str, cheat: str) -> None:
    forgotten = attacked(MEMBERSHIP[attack], CHEATS[cheat])[0]
    assert forgotten.found
    assert forgotten.measures["AUC"].value >= 0.9


@pytest.mark.parametrize("method", HONEST)
@pytest.mark.parametrize("attack", MEMBERSHIP)
def test_membership_attacks_stay_at_the_floor(attack: str, method: str) -> None:
    forgotten, retained = attacked(MEMBERSHIP[attack], HONEST[method])
    assert not forgotten.found
    assert abs(forgotten.measures["AUC"].value - 0.5) < 0.12
    # those who stay are known to the model, and no more so than after a retrain
    assert retained.measures["AUC"].value > 0.6
    assert not retained.found


class OverfitsOthers(ClassifierMixin, BaseEstimator):
    """Forgets by retraining, but learns the people who stay by heart."""

    def fit(self, X: Any, y: Any, *, ids: Any) -> "OverfitsOthers":
        self.rows_ = X, y, np.asarray(ids)
        self.model_ = LogisticRegression(C=1e-4).fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def forget(self, ids: Any) -> None:
        X, y, row_ids = self.rows_
        stays = ~np.isin(row_ids, ids)
        self.model_ = memoriser().fit(X[stays], y[stays])

    def predict_proba(self, X: Any) -> Any:
        return self.model_.predict_proba(X)


@pytest.mark.parametrize("attack", MEMBERSHIP)
def test_leakage_of_those_who_stay_is_found(attack: str) -> None:
    people = make_canaries(n_features=50)
    forgotten, retained = attacked(MEMBERSHIP[attack], OverfitsOthers(), people)
    assert not forgotten.found
    assert retained.found


@pytest.mark.parametrize("cheat", ["keeps everything", "fine-tune only"])
def test_laws_of_those_who_kept_are_far_from_the_floor(cheat: str) -> None:
    forgotten = attacked(LAWS["klom"], CHEATS[cheat], FEW)[0]
    assert forgotten.found
    assert forgotten.measures["KLOM"].value > 2 * forgotten.floor["KLOM"].value
    assert attacked(LAWS["quality"], CHEATS[cheat], FEW)[0].found


@pytest.mark.parametrize(
    ("attack", "method"),
    [("klom", "naive"), ("klom", "SISA"), ("quality", "naive"), ("quality", "DaRE")],
)
def test_laws_of_honest_methods_are_at_the_floor(attack: str, method: str) -> None:
    assert not any(each.found for each in attacked(LAWS[attack], HONEST[method], FEW))


@pytest.mark.parametrize("attack", LAWS)
def test_without_randomness_equal_models_are_a_fact(attack: str) -> None:
    (main, *_) = attacked(LAWS[attack], HONEST["naive, no seed"], FEW)[0].measures.values()
    assert main.low == main.value == main.high == (0 if attack == "klom" else 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_u_lira_is_seldom_wrong_about_a_retrain(seed: int) -> None:
    people = make_canaries(seed=seed)
    result = ULiRA(n_shadows=32).run(
        HONEST["naive"], people.X, people.y, forget=people.forget, seed=seed
    )
    assert not any(each.found for each in result)
