"""U-LiRA: LiRA against unlearning (Hayes et al., 2024)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_regressor

from letheon.measures._measure import Measure
from letheon.measures.attacks._lira import cross_lira
from letheon.measures.attacks._result import About, AttackResult
from letheon.measures.attacks._roc import auc, tpr_at_fpr
from letheon.measures.attacks._shadows import Job, Probe, Progress, Study, halves

__all__ = ["ULiRA"]

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

# A forest's probability of exactly 1 must not outweigh everything else.
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
    with several rows are averaged; intervals treat people and models as sampled. Regressors: the
    signal is minus the squared error.

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
        signal = study.train(probe, jobs, progress=progress).signal
        if not is_regressor(unlearner):
            signal = np.clip(signal, -_CLIP, _CLIP)
        results = []
        for about in self.about:
            worlds = _Worlds(probe, signal, members, people[about])
            results.append(worlds.result(about))
        return tuple(results)


def pair_of_worlds(study: Study, unlearner: Any, naive: Any, members: Bools) -> list[Job]:
    """Return the unlearned models, then as many retrained ones on the same retained people."""
    fresh = unlearner if naive is None else naive
    gone = study.candidates
    return [Job(unlearner, each, gone, "attack-shadow", k) for k, each in enumerate(members)] + [
        Job(fresh, each & ~gone, None, "attack-floor", k) for k, each in enumerate(members)
    ]


@dataclass(frozen=True)
class _Worlds:
    """Signals of unlearned and of retrained models for some people."""

    probe: Probe
    signal: Floats
    members: Bools
    people: NDArray[np.int64]

    def result(self, about: About) -> AttackResult:
        """Return the attack on these people beside its floor."""
        inside = self.members[:, self.people]
        signals = self.probe.of_people(self.signal, self.people)
        folds = np.arange(len(inside)) // 2
        scores, floor = (cross_lira(part, inside, folds) for part in np.split(signals, 2))
        return AttackResult(
            attack=ULiRA.name,
            about=about,
            measures=_all_measures(scores, inside),
            floor=_all_measures(floor, inside),
            n_models=len(signals),
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


def both_rates(scores: Floats, labels: Bools) -> dict[str, Measure]:
    """Return AUC and TPR at 1 % FPR of scores of shape (worlds, people)."""
    worlds, people = np.indices(scores.shape)
    groups = (people.ravel(), worlds.ravel())
    measures = [
        auc(scores.ravel(), labels.ravel(), groups=groups),
        tpr_at_fpr(scores.ravel(), labels.ravel(), groups=groups),
    ]
    return {measure.name: measure for measure in measures}


def _all_measures(scores: Floats, labels: Bools) -> dict[str, Measure]:
    """Return the rates over all people, and the AUC of the worst one."""
    areas = [auc(scores[:, k], labels[:, k]).value for k in range(scores.shape[1])]
    worst = Measure(
        name="AUC of the worst person",
        value=max(areas),
        low=None,
        high=None,
        n=len(areas),
        better="lower",
        basis="measured",
        note="the largest of many is large by chance too: read it beside its floor",
    )
    return both_rates(scores, labels) | {worst.name: worst}
