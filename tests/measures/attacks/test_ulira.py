from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from letheon import NaiveUnlearner
from letheon.measures.attacks import (
    ALL,
    KLOM,
    RMIA,
    BackdoorTest,
    BeforeAfter,
    ForgettingQuality,
    KeepsEverything,
    ULiRA,
    auc,
    cross_lira,
)
from letheon.measures.attacks._shadows import AttackInputs, Study
from letheon.sharded import SISAClassifier
from tests.measures.attacks.canaries import learner, make_canaries

SMALL: dict[str, Any] = {
    "u-lira": ULiRA(n_shadows=8),
    "rmia": RMIA(n_targets=4),
    "klom": KLOM(n_models=20, n_retained=9, n_population=9),
    "forgetting-quality": ForgettingQuality(n_models=32),
}


class Diary(ClassifierMixin, BaseEstimator):
    """An unlearner that writes down which rows (their first column) it was given, and who left."""

    fits: ClassVar[list[tuple[Any, NDArray[Any]]]] = []
    gone: ClassVar[list[list[int]]] = []

    def __init__(self, random_state: Any = None) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, ids: Any) -> "Diary":
        self.classes_ = np.array([0, 1])
        self.fits.append((self.random_state, np.asarray(ids)))
        self.rows_ = set(np.asarray(X)[:, 0].tolist())
        return self

    def forget(self, ids: Any) -> None:
        self.gone.append(list(ids))

    def predict_proba(self, X: Any) -> Any:
        known = np.isin(np.asarray(X)[:, 0], list(self.rows_))
        assert not known[np.asarray(X)[:, 0] >= 1000].any()
        p = np.where(known, 0.9, 0.4)
        return np.column_stack([p, 1 - p])


@pytest.fixture
def diary() -> type[Diary]:
    Diary.fits, Diary.gone = [], []
    return Diary


def numbered(n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.arange(n, dtype=float)[:, None], np.zeros(n, int)


def test_every_shadow_forgets_as_many_and_every_person_is_in_half(diary: type[Diary]) -> None:
    X, y = numbered(40)
    ULiRA(n_shadows=8).run(Diary(), X, y, forget=[1, 5, 9, 30])
    unlearned, retrained = diary.fits[:8], diary.fits[8:]
    assert [len(each) for each in diary.gone] == [2] * 8
    assert (np.bincount(np.concatenate([ids for _, ids in unlearned]), minlength=40) == 4).all()
    for (_, ids), left, (_, kept) in zip(unlearned, diary.gone, retrained, strict=True):
        assert set(ids) - set(left) == set(kept)


def test_a_single_person_is_judged_against_a_stand_in(diary: type[Diary]) -> None:
    X, y = numbered(20)
    (result,) = ULiRA(n_shadows=8, about=("forgotten",)).run(Diary(), X, y, forget=[3])
    assert [len(each) for each in diary.gone] == [1] * 8
    assert sum(each == [3] for each in diary.gone) == 4
    assert result.scores is not None
    assert result.scores.shape == (8,)


def test_all_models_have_seeds_of_their_own(diary: type[Diary]) -> None:
    X, y = numbered(20)
    RMIA(n_targets=4).run(Diary(), X, y, forget=[3, 4])
    assert len({seed for seed, _ in diary.fits}) == 4 + 4 + 4


def test_references_never_saw_the_forgotten(diary: type[Diary]) -> None:
    X, y = numbered(30)
    RMIA(n_references=4, n_targets=4).run(Diary(), X, y, forget=[3, 4])
    references = [set(ids.tolist()) for _, ids in diary.fits[8:]]
    assert all(not {3, 4} & each for each in references)
    assert not references[0] & references[1]


@pytest.mark.parametrize("name", ["rmia", "klom", "forgetting-quality"])
def test_people_set_aside_are_in_no_model(name: str, diary: type[Diary]) -> None:
    X, y = numbered(40)
    SMALL[name].run(Diary(), X, y, forget=[0, 1])
    trained = np.unique(np.concatenate([ids for _, ids in diary.fits]))
    study = Study.from_inputs(AttackInputs(None, None, X, y, None, [0, 1], None))
    aside = study.unseen.ids.to_array()
    assert len(aside) == int(0.2 * 38)
    assert not np.isin(aside, trained).any()
    assert not np.isin(aside, [0, 1]).any()


@pytest.mark.parametrize("name", ["rmia", "klom", "forgetting-quality"])
def test_a_population_of_the_caller_is_in_no_model(name: str, diary: type[Diary]) -> None:
    X, y = numbered(30)
    others = X + 1000
    SMALL[name].run(Diary(), X, y, forget=[0, 1], population=(others, y))
    trained = np.unique(np.concatenate([ids for _, ids in diary.fits]))
    assert trained.tolist() == list(range(30))


def test_planted_bug_swapped_worlds_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    people = make_canaries(120, n_canaries=10)
    model = KeepsEverything(LogisticRegression(C=1e3, max_iter=3000))
    attack = ULiRA(n_shadows=8, about=("forgotten",))
    right = attack.run(model, people.X, people.y, forget=people.forget)[0]
    where = "letheon.measures.attacks._lira.cross_lira"
    monkeypatch.setattr(where, lambda signals, members, f: cross_lira(signals, ~members, f))
    swapped = attack.run(model, people.X, people.y, forget=people.forget)[0]
    areas = [auc(each.scores, each.labels).value for each in (right, swapped)]  # type: ignore[arg-type]
    assert right.measures["AUC"].value >= 0.9
    assert areas[0] >= 0.9
    assert areas[1] <= 0.1


@pytest.mark.parametrize("name", SMALL)
def test_same_seed_same_result_and_all_know_their_floor(name: str) -> None:
    X, y = numbered(40)[0], np.arange(40) % 2
    run = SMALL[name].run
    model = NaiveUnlearner(GaussianNB())
    first, second = (
        [each.to_dict() for each in run(model, X, y, forget=[3, 8], seed=1)] for _ in range(2)
    )
    assert first == second
    assert first[0]["attack"] == name
    assert " not prove " in first[0]["note"]


@pytest.mark.parametrize("name", SMALL)
def test_people_with_several_rows_and_texts_for_ids(name: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.arange(60) % 2
    ids = np.array([f"p{k % 20}" for k in range(60)])
    model = NaiveUnlearner(DecisionTreeClassifier(max_depth=3))
    result = SMALL[name].run(model, X, y, forget=["p3", "p8"], ids=ids)[0]
    assert not result.found
    assert result.owners is None or set(result.owners) == {0, 1}


def test_regressors_are_attacked_by_their_errors() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 3)), 1000 * rng.normal(size=80)
    attack, tree, people = ULiRA(n_shadows=16), DecisionTreeRegressor(), np.arange(16)
    kept = attack.run(KeepsEverything(tree), X, y, forget=people)
    fresh = attack.run(NaiveUnlearner(tree), X, y, forget=people)
    assert kept[0].found
    assert kept[0].measures["AUC"].value >= 0.9
    assert not fresh[0].found


def test_the_floor_may_be_another_estimator() -> None:
    X, y = numbered(40)[0], np.arange(40) % 2
    model = NaiveUnlearner(DecisionTreeClassifier(max_depth=3))
    plain = DecisionTreeClassifier(max_depth=3)
    with_plain = ULiRA(n_shadows=8).run(model, X, y, naive=plain, forget=[3, 8])
    own = ULiRA(n_shadows=8).run(model, X, y, forget=[3, 8])
    assert with_plain[0].measures == own[0].measures
    assert with_plain[0].floor["AUC"].n == own[0].floor["AUC"].n


def test_progress_and_prototype(diary: type[Diary]) -> None:
    X, y = numbered(20)
    prototype, seen = Diary(random_state=7), []
    ULiRA(n_shadows=8).run(
        prototype, X, y, forget=[1, 2], progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(8, 16), (16, 16)]
    assert not hasattr(prototype, "classes_")
    assert clone(prototype).random_state == 7


@pytest.mark.parametrize(
    ("forget", "message"),
    [
        ([99], "not in the training rows"),
        ([], "forget is empty"),
        (list(range(19)), "at least 3 must be retained"),
    ],
)
def test_people_who_cannot_be_attacked(forget: list[int], message: str) -> None:
    X, y = numbered(20)
    with pytest.raises(ValueError, match=message):
        ULiRA(n_shadows=8).run(Diary(), X, y, forget=forget)


def test_labels_are_needed() -> None:
    with pytest.raises(ValueError, match="needs labels"):
        ULiRA().run(Diary(), np.zeros((9, 1)), None, forget=[1])
    with pytest.raises(ValueError, match="9 rows, but y has 8"):
        ULiRA().run(Diary(), np.zeros((9, 1)), np.zeros(8), forget=[1])


@pytest.mark.parametrize("name", ALL)
def test_what_cannot_forget_is_refused_with_advice(name: str) -> None:
    X, y = numbered(40)
    with pytest.raises(TypeError, match=r"LogisticRegression has no method forget.*NaiveUnlearner"):
        ALL[name]().run(LogisticRegression(), X, y, forget=[1, 2, 3, 4])
    with pytest.raises(TypeError, match="is the class"):
        ALL[name]().run(NaiveUnlearner, X, y, forget=[1, 2, 3, 4])


@pytest.mark.parametrize("name", ["u-lira", "rmia"])
@pytest.mark.parametrize("about", ["forgotten", (), ("forgoten",), ("forgotten", "forgotten")])
def test_whom_to_attack_is_checked_at_once(name: str, about: Any) -> None:
    with pytest.raises(ValueError, match="about must be a tuple"):
        ALL[name](about=about)


def test_settings_of_rmia_are_checked_at_once() -> None:
    with pytest.raises(ValueError, match="a must be between 0 and 1"):
        RMIA(a=7)
    with pytest.raises(ValueError, match="gamma must be positive"):
        RMIA(gamma=0)


@pytest.mark.parametrize("convert", [coo_matrix, np.ndarray.tolist])
def test_tables_of_other_kinds(convert: Any) -> None:
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2
    model, attack = NaiveUnlearner(LogisticRegression()), ULiRA(n_shadows=8)
    result = attack.run(model, convert(X), y, forget=[1, 2])[0]
    assert result.measures == attack.run(model, X, y, forget=[1, 2])[0].measures


@pytest.mark.parametrize(
    "attack",
    [ULiRA(n_shadows=8), BackdoorTest(n_repeats=1), BeforeAfter(n_shadows=1, n_targets=1)],
)
def test_shadow_models_leave_no_files(attack: Any, tmp_path: Path) -> None:
    """They were trained on all people, including the forgotten ones."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.arange(60) % 2
    model = SISAClassifier(learner(), n_shards=2, n_slices=2, checkpoint_dir=tmp_path)
    attack.run(model, X, y, forget=[0, 1, 2, 3])
    assert not list(tmp_path.rglob("*"))
    clone(model).fit(X, y)
    assert list(tmp_path.rglob("*"))


def test_a_convolutional_net_is_attacked_with_its_images() -> None:
    pytest.importorskip("torch")
    from letheon.deep import CNN, SISANetClassifier

    rng = np.random.default_rng(0)
    images, y = rng.integers(256, size=(24, 1, 6, 6), dtype=np.uint8), np.arange(24) % 2
    model = SISANetClassifier(
        module=CNN(channels=(2,), hidden=0), n_shards=1, epochs=1, device="cpu"
    )
    result = RMIA(n_targets=2, n_references=2).run(model, images, y, forget=[1, 2])
    assert [each.n_models for each in result] == [6, 6]


def test_an_odd_number_of_shadows_is_refused() -> None:
    with pytest.raises(ValueError, match="n_shadows must be even"):
        ALL["u-lira"](n_shadows=9)


def test_images_are_no_table(diary: type[Diary]) -> None:
    class Flat(Diary):
        def fit(self, X: Any, y: Any, *, ids: Any) -> "Diary":
            assert X.shape[1:] == (2, 3)
            return super().fit(X.reshape(len(X), -1), y, ids=ids)

        def predict_proba(self, X: Any) -> Any:
            return super().predict_proba(X.reshape(len(X), -1))

    X, y = np.arange(180.0).reshape(30, 2, 3), np.zeros(30, int)
    result = RMIA(n_targets=4).run(Flat(), X, y, forget=[1, 2])
    assert len(result) == 2
    assert len(diary.fits) == 12
