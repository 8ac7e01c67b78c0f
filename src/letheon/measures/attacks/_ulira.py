"""U-LiRA: LiRA against unlearning (Hayes et al., 2024)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_regressor

from letheon.measures._measure import Measure
from letheon.measures.attacks._lira import cross_lira
from letheon.measures.attacks._pairs import Pairs, pair_auc, pair_excess
from letheon.measures.attacks._result import About, AttackResult, check_about
from letheon.measures.attacks._roc import tpr_at_fpr
from letheon.measures.attacks._shadows import (
    Job,
    Probe,
    Progress,
    Study,
    check_unlearner,
    halves,
)
from letheon.measures.attacks._signal import LIMIT
from letheon.purposes import Purpose

__all__ = ["ULiRA"]

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

# A forest's probability of exactly 1 must not outweigh everything else. Where models have margins
# beyond this that are numbers, not the limit, these are kept.
_CLIP = 15.0

_NOTE = {
    "forgotten": (
        "in: trained on the person, then asked to forget; out: never trained on. A small number "
        "does not prove forgetting: it is what this attack finds with so many shadow models, "
        "each trained on a random half of the people."
    ),
    "retained": (
        "in: trained on the person, who stays while others are forgotten; out: never trained "
        "on. The floor is the leakage of a retrain; beyond it, unlearning others costs those who "
        "stay. A small number does not prove that they are safe."
    ),
}


@dataclass(frozen=True, kw_only=True)
class ULiRA:
    """LiRA for each person against models that were trained with them and then forgot them.

    ``score(x) = log N(phi(x) | in) - log N(phi(x) | out)``, where *in* models were trained with x
    and then unlearned it by the method under test, and *out* models never saw x, the procedure
    being the same otherwise. Perfect unlearning scores an AUC of 0.5.

    Parameters
    ----------
    n_shadows : int, default=64
        Models to train, even. Hayes et al. use 256 for the last bit of power; each is used for all
        people.
    about : tuple of {"forgotten", "retained"}, default=both
        Whom to attack.
    n_retained : int, default=200
        Retained people attacked at most.
    n_jobs : int or None, default=None
        Shadow models trained at once, through joblib.

    Notes
    -----
    Every shadow model trains on a random half of the retained people and a random half of those who
    are to be forgotten, and then forgets the latter in one request. The floor is the same attack on
    a fresh fit, with another seed, on the retained people of the same half. Signals of a person
    with several rows are averaged. Regressors: the signal is minus the squared error.

    The AUC compares the two models of each pair, so that it is 1/2 on average where there is
    nothing to be found, for a single person too. Its interval treats people and pairs as sampled.
    `found` goes by the difference to the floor, about these people: unlearned and retrained
    models of the same half change places at random, so its false alarms are those stated
    however few the models are. The TPR has one threshold for all people and models.

    References
    ----------
    Hayes, Shumailov, Triantafillou, Khalifa, Papernot: Inexact unlearning needs more careful
    evaluations to avoid a false sense of privacy. 2024.
    """

    name: ClassVar[str] = "u-lira"

    n_shadows: int = 64
    about: tuple[About, ...] = ("forgotten", "retained")
    n_retained: int = 200
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings that give no experiment."""
        if self.n_shadows < 8 or self.n_shadows % 2:
            raise ValueError(f"n_shadows must be even and at least 8, not {self.n_shadows}")
        check_about(self.about)

    def run(
        self,
        unlearner: Any,
        X: Any,
        y: Any,
        *,
        forget: Any,
        ids: Any = None,
        population: tuple[Any, Any] | None = None,
        naive: Any = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> tuple[AttackResult, ...]:
        """Attack clones of an unfitted unlearner.

        Parameters
        ----------
        unlearner : estimator
            Unfitted prototype with ``fit(X, y, ids=)``, ``forget(ids)`` and ``predict_proba``.
        X, y : array-like
            Training rows.
        forget : sequence
            Ids of the people who leave.
        ids : sequence, optional
            Whose row each is. Default ``0..n-1``.
        population : (X, y), optional
            Rows nobody trained on; not needed here.
        naive : estimator, optional
            Unfitted prototype of the floor's model; default a fresh fit of the unlearner.
        seed : int, default=0
            Seed of halves and models.
        progress : callable, optional
            Called with (models trained, models in all).

        Returns
        -------
        tuple of AttackResult
            One for each entry of `about`.
        """
        check_unlearner(unlearner)
        study = Study.of(
            X,
            y,
            forget=forget,
            ids=ids,
            population=population,
            seed=seed,
            needs_unseen=False,
            n_jobs=self.n_jobs,
        )
        people = {
            "forgotten": np.flatnonzero(study.forgotten),
            "retained": study.retained(self.n_retained),
        }
        probe = study.probe(np.concatenate([people[each] for each in self.about]), 0)
        members = halves(study.n_people, study.candidates, self.n_shadows, seed)
        jobs = pair_of_worlds(study, unlearner, naive, members)
        shadows = study.train(probe, jobs, progress=progress)
        signal, before = shadows.signal, shadows.before
        if not is_regressor(unlearner):
            signal, before = _cut(signal), _cut(before)
        results = []
        for about in self.about:
            worlds = _Worlds(probe, signal, before, members, people[about])
            results.append(worlds.result(about))
        return tuple(results)


def _cut(margins: Floats) -> Floats:
    """Return margins cut at 15, or at the largest that is no limit itself."""
    sizes = np.abs(margins)
    most = max(_CLIP, float(sizes[sizes < LIMIT].max(initial=0.0)))
    return np.clip(margins, -most, most)


def pair_of_worlds(study: Study, unlearner: Any, naive: Any, members: Bools) -> list[Job]:
    """Return the unlearned models, then as many retrained ones on the same retained people."""
    fresh = unlearner if naive is None else naive
    gone = study.candidates
    return [
        Job(unlearner, each, gone, Purpose.ATTACK_SHADOW, k) for k, each in enumerate(members)
    ] + [Job(fresh, each & ~gone, None, Purpose.ATTACK_FLOOR, k) for k, each in enumerate(members)]


@dataclass(frozen=True)
class _Worlds:
    """Signals of unlearned and of retrained models for some people."""

    probe: Probe
    signal: Floats
    before: Floats
    members: Bools
    people: NDArray[np.int64]

    def result(self, about: About) -> AttackResult:
        """Return the attack on these people beside its floor."""
        inside = self.members[:, self.people]
        signals, floor = np.split(self.probe.of_people(self.signal, self.people), 2)
        before = self.probe.of_people(self.before, self.people)
        folds = np.arange(len(inside)) // 2
        scores = cross_lira(signals, inside, folds)
        return AttackResult(
            attack=ULiRA.name,
            about=about,
            measures=_all_measures(signals, scores, inside),
            floor=_all_measures(floor, cross_lira(floor, inside, folds), inside),
            excess=pair_excess(signals, floor, inside),
            control=pair_excess(before, floor, inside) if about == "forgotten" else None,
            n_models=2 * len(inside),
            note=_NOTE[about],
            **flat(scores, inside),
        )


def flat(scores: Floats, labels: Bools) -> dict[str, NDArray[Any]]:
    """Return scores of shape (worlds, people) as one list, person by person."""
    n_worlds, n_people = scores.shape
    return {
        "scores": scores.T.ravel(),
        "labels": labels.T.ravel().astype(np.int64),
        "owners": np.repeat(np.arange(n_people), n_worlds),
    }


def share_found(scores: Floats, labels: Bools) -> Measure:
    """Return the TPR at 1 % FPR of scores of shape (worlds, people)."""
    worlds, people = np.indices(scores.shape)
    return tpr_at_fpr(scores.ravel(), labels.ravel(), groups=(people.ravel(), worlds.ravel()))


def _all_measures(signals: Floats, scores: Floats, labels: Bools) -> dict[str, Measure]:
    """Return the rates over all people, and the AUC of the worst one."""
    pairs = Pairs.of(signals, labels)
    areas = pairs.wins().mean(axis=0)
    worst = Measure(
        name="AUC of the worst person",
        value=float(areas.max()),
        low=None,
        high=None,
        n=len(areas),
        better="lower",
        basis="measured",
        note="the largest of many is large by chance too: read it beside its floor",
    )
    measures = [pair_auc(pairs), share_found(scores, labels), worst]
    return {measure.name: measure for measure in measures}
