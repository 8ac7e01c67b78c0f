"""RMIA: robust membership inference with few reference models (Zarifzadeh et al., 2024)."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import is_regressor

from letheon.measures._intervals import Bools, Floats, Ints
from letheon.measures._measure import Measure
from letheon.measures.attacks._lira import flatten_scores, plan_shadow_models, tpr_at_one_percent
from letheon.measures.attacks._result import (
    About,
    AttackResult,
    area_by_unit,
    auc,
    beyond_floor_by_unit,
    check_about,
)
from letheon.measures.attacks._shadows import (
    Attack,
    AttackInputs,
    Probe,
    ShadowJob,
    Study,
    mean_by_person,
    split_halves,
)
from letheon.purposes import Purpose

_GRID = tuple(k / 10 for k in range(11))
_UNTUNED = 0.3
_NOTE = {
    "forgotten": (
        "A low value does not prove forgetting: it is the result of this attack with a few "
        "reference models, which were not trained on the forgotten people."
    ),
    "retained": (
        "The floor is the leakage of a retrained model; an excess means that unlearning harms the "
        "privacy of retained people. A low value does not prove their privacy."
    ),
}


def _likelihood_ratios(target: Floats, references: Floats, a: float) -> Floats:
    """Return ``P(x | theta) / P(x)`` of each example; see `rmia` for ``P(x)``.

    In `references`, NaN marks the references that were trained on x.
    """
    known = ~np.isnan(references)
    if not known.any(axis=0).all():
        raise ValueError("every example needs a reference model that was not trained on it")
    mean_out = np.where(known, references, 0.0).sum(axis=0) / known.sum(axis=0)
    return np.asarray(target / ((1 + a) / 2 * mean_out + (1 - a) / 2 + np.finfo(float).tiny))


def rmia(
    target: ArrayLike,
    references: ArrayLike,
    target_population: ArrayLike,
    references_population: ArrayLike,
    *,
    a: float = _UNTUNED,
    gamma: float = 1.0,
    break_ties: bool = False,
) -> Floats:
    """Return the RMIA score of each example, in [0, 1], from probabilities.

    The score is the share of the population that the attacked model favours less than x:
    ``score(x) = Pr_z [ratio(x) / ratio(z) > gamma]`` with ``ratio(x) = P(x | theta) / P(x)``. In
    the offline attack, ``P(x) = (1 + a) / 2 * mean_out(x) + (1 - a) / 2``.

    Parameters
    ----------
    target : array-like of shape (n,)
        Probability of the true label under the attacked model.
    references : array-like of shape (n_references, n)
        Probability of the true label under reference models; NaN if the reference was trained on
        the example. The attacked model must not be one of the references.
    target_population, references_population : array-like, (n_z,) and (n_references, n_z)
        The same probabilities for rows of the population, which no model was trained on.
    a : float, default=0.3
        How much training on x increases its probability: 1 not at all, 0 as much as possible.
        See `tune_offline`.
    gamma : float, default=1
        Factor by which x must be favoured over z.
    break_ties : bool, default=False
        Whether to order equal scores, especially those at 1, by ``ratio(x)``. Without it, a
        false positive rate of 1 % is often not attainable.

    Returns
    -------
    ndarray of shape (n,)

    Examples
    --------
    >>> rmia([0.9, 0.2], [[0.5, 0.5]], [0.4, 0.6, 0.8], [[0.5, 0.5, 0.5]]).tolist()
    [1.0, 0.0]
    """
    x = _likelihood_ratios(np.asarray(target, np.float64), np.asarray(references, np.float64), a)
    z = _likelihood_ratios(
        np.asarray(target_population, np.float64), np.asarray(references_population, np.float64), a
    )
    rank = np.searchsorted(np.sort(gamma * z), x, side="left")
    return (rank + x / (1 + x)) / (len(z) + 1) if break_ties else rank / len(z)


def tune_offline(
    references: ArrayLike, members: ArrayLike, references_population: ArrayLike
) -> float:
    """Return the `a` in {0, 0.1, ..., 1} with the largest AUC on the first reference model.

    Parameters
    ----------
    references : array-like of shape (n_references, n)
        Probabilities of the true label under the reference models.
    members : array-like of bool, shape (n_references, n)
        Which examples each reference was trained on.
    references_population : array-like of shape (n_references, n_z)
        The same probabilities for rows that no reference was trained on.

    Returns
    -------
    float
        The best `a`, or the smallest one if several are equally good. 0.3 if the usable examples
        are all members or all non-members, as with two references.

    Examples
    --------
    >>> references = [[0.9, 0.6, 0.7, 0.3], [0.5, 0.9, 0.4, 0.8], [0.6, 0.5, 0.8, 0.9]]
    >>> members = [[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]]
    >>> tune_offline(references, members, [[0.5, 0.4], [0.6, 0.5], [0.5, 0.6]])
    0.0
    """
    p, inside = np.asarray(references, np.float64), np.asarray(members, bool)
    z = np.asarray(references_population, np.float64)
    others = np.where(inside[1:], np.nan, p[1:])
    usable = (~inside[1:]).any(axis=0)
    labels = inside[0, usable]
    if labels.all() or not labels.any():
        return _UNTUNED

    def attack_auc(a: float) -> float:
        scores = rmia(p[0, usable], others[:, usable], z[0], z[1:], a=a)
        return auc(scores, labels).value

    return max(_GRID, key=attack_auc)


@dataclass(frozen=True, kw_only=True)
class RMIA(Attack):
    """Robust membership inference against unlearned models; cheap, so it is the default attack.

    Parameters
    ----------
    n_references : int, default=4
        Number of reference models, even. They are trained on random halves of the retained people,
        never on forgotten people.
    n_targets : int, default=16
        Number of attacked models, even. Each trains on a random half of the people and then
        forgets the people to be forgotten.
    a : float or None, default=None
        The offline parameter of `rmia`. If None, it is tuned on a reference model.
    gamma : float, default=1
        See `rmia`.
    about : tuple of {"forgotten", "retained"}, default=both
        Groups of people to attack.
    n_retained : int, default=200
        Largest number of retained people to attack.
    n_population : int, default=1000
        Largest number of population rows.
    n_jobs : int or None, default=None
        Number of models trained in parallel, with joblib.

    Notes
    -----
    The floor is the same attack, with the same references, on fresh fits with other seeds. Scores
    of a person with several rows are averaged; intervals treat people and models as sampled units.
    `found` depends on the difference from the floor between models of the same half (Student's
    interval over models). Ties are broken by the ratio, see `rmia`. For regressors ``P(x | theta) =
    exp(-r^2 / (2 s^2))``, with the residual r and the mean square s^2 of the references' residuals
    on the population. With four references the attack is weaker than reported in the paper.

    References
    ----------
    Zarifzadeh, Liu, Shokri: Low-cost high-power membership inference attacks. ICML 2024.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon import NaiveUnlearner
    >>> X, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
    >>> attack = RMIA(n_targets=2, n_references=2)
    >>> forgotten, retained = attack.run(NaiveUnlearner(GaussianNB()), X, y, forget=range(8))
    >>> forgotten.found
    False
    """

    name: ClassVar[str] = "rmia"

    n_references: int = 4
    n_targets: int = 16
    a: float | None = None
    gamma: float = 1.0
    about: tuple[About, ...] = ("forgotten", "retained")
    n_retained: int = 200
    n_population: int = 1000
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        """Raise if a setting is invalid."""
        for name in ("n_references", "n_targets"):
            value = getattr(self, name)
            if value < 2 or value % 2:
                raise ValueError(f"{name} must be even and at least 2, not {value}")
        if self.a is not None and not 0 <= self.a <= 1:
            raise ValueError(f"a must be between 0 and 1, or None, not {self.a}")
        if self.gamma <= 0:
            raise ValueError(f"gamma must be positive, not {self.gamma}")
        check_about(self.about)

    def _run_attack(self, inputs: AttackInputs) -> tuple[AttackResult, ...]:
        study = Study.from_inputs(inputs, n_jobs=self.n_jobs)
        people = study.sample_people(self.n_retained)
        probe = study.make_probe(np.concatenate(list(people.values())), self.n_population)
        members = split_halves(study.candidates, self.n_targets, inputs.seed)
        known = split_halves(study.candidates, self.n_references, inputs.seed + 1)
        known &= ~study.candidates
        jobs = plan_shadow_models(study, inputs, members)
        purpose = Purpose.ATTACK_REFERENCE
        jobs += [ShadowJob(inputs.naive, half, None, purpose, k) for k, half in enumerate(known)]
        signal = study.train_models(probe, jobs, inputs.progress).signal
        if is_regressor(inputs.unlearner):
            square = float(-probe.of_unseen(signal[-self.n_references :]).mean())
            p = np.exp(signal / (2 * max(square, np.finfo(float).tiny)))
        else:
            p = np.asarray(expit(signal))
        a = self.a
        if a is None:
            rows, owners = probe.rows_of(people["retained"])
            references = p[-len(known) :]
            inside, unseen = known[:, owners], probe.of_unseen(references)
            a = tune_offline(references[:, rows], inside, unseen)
        return tuple(
            self._make_result(about, people[about], a, probe, p, members, known)
            for about in self.about
        )

    def _make_result(
        self,
        about: About,
        people: Ints,
        a: float,
        probe: Probe,
        p: Floats,
        members: Bools,
        known: Bools,
    ) -> AttackResult:
        """Return the result of the attack on `people`, with its floor.

        `p` has one row per model: unlearned, retrained and reference models, in this order.
        `members` and `known` say which people the attacked and the reference models train on.
        """
        rows, owners = probe.rows_of(people)
        out = np.where(known[:, owners], np.nan, p[-len(known) :, rows])
        z = probe.of_unseen(p)
        z_out, settings = z[-len(known) :], {"a": a, "gamma": self.gamma}
        scores = np.array(
            [
                rmia(model[rows], out, z[k], z_out, break_ties=True, **settings)
                for k, model in enumerate(p[: 2 * len(members)])
            ]
        )
        after, floor = np.split(mean_by_person(scores, owners), 2)
        inside = members[:, np.unique(owners)]
        gaps = _area_by_model(after, inside) - _area_by_model(floor, inside)
        return AttackResult(
            attack=self.name,
            about=about,
            measures=_both_rates(after, inside),
            floor=_both_rates(floor, inside),
            excess=beyond_floor_by_unit(gaps, note="AUC minus floor, model by model"),
            n_models=len(p),
            note=f"a = {a:.1f}. {_NOTE[about]}",
            **flatten_scores(after, inside),
        )

    def audit(
        self,
        forgotten: ArrayLike,
        unseen: ArrayLike,
        references_forgotten: ArrayLike,
        references_unseen: ArrayLike,
        *,
        owners: ArrayLike | None = None,
    ) -> AttackResult:
        """Attack one model after one request, from the probabilities of the true labels.

        The attack tests whether forgotten people can be distinguished from unseen people. Every
        other unseen row is used as population, the rest as non-members.

        Parameters
        ----------
        forgotten, unseen : array-like of shape (n,) and (n_z,)
            Probabilities under the model after the request, for rows of the forgotten people and
            for rows that no model was trained on.
        references_forgotten, references_unseen : array-like, (n_references, n) and (.., n_z)
            Probabilities for these rows under at least two models that were retrained without the
            forgotten people.
        owners : array-like of shape (n,), optional
            Person of each forgotten row; by default each row belongs to a different person.

        Returns
        -------
        AttackResult
            The floor is the same attack on each reference model, with the others as its references,
            because forgotten and unseen people may differ for reasons other than membership. A
            single model has no pairs, so `found` requires disjoint intervals, which is
            conservative.
        """
        p = np.vstack([forgotten, references_forgotten]).astype(np.float64)
        z = np.vstack([unseen, references_unseen]).astype(np.float64)
        n_references = len(p) - 1
        if n_references < 2 or z.shape[1] < 4:
            raise ValueError(
                f"audit needs at least 2 references and 4 unseen rows, not {n_references} and "
                f"{z.shape[1]}"
            )
        people = np.arange(p.shape[1]) if owners is None else np.asarray(owners)
        people = np.unique(people, return_inverse=True)[1].astype(np.int64)
        a = _UNTUNED if self.a is None else self.a

        def score_model(k: int) -> Floats:
            """Return the scores under model k: forgotten people, then every other unseen row."""
            others = [number for number in range(1, len(p)) if number != k]
            score = partial(
                rmia,
                target_population=z[k, ::2],
                references_population=z[others, ::2],
                a=a,
                gamma=self.gamma,
                break_ties=True,
            )
            own, unseen_scores = score(p[k], p[others]), score(z[k, 1::2], z[others, 1::2])
            return np.concatenate([mean_by_person(own, people), unseen_scores])

        # The audited model comes first, then the references.
        scores, *rounds = map(score_model, range(len(p)))
        labels = np.arange(len(scores)) < len(np.unique(people))
        return AttackResult(
            attack=RMIA.name,
            about="forgotten",
            measures=_both_rates(scores[None], labels[None]),
            floor=_both_rates(np.array(rounds), np.tile(labels, (n_references, 1))),
            n_models=n_references,
            note="One model, forgotten against unseen people. " + _NOTE["forgotten"],
            **flatten_scores(scores[None], labels[None]),
        )


def _both_rates(scores: Floats, labels: Bools) -> dict[str, Measure]:
    """Return AUC and TPR at 1 % FPR by name; scores and labels have the shape (worlds, people)."""
    worlds, people = np.indices(scores.shape)
    area = auc(scores.ravel(), labels.ravel(), groups=(people.ravel(), worlds.ravel()))
    return {measure.name: measure for measure in (area, tpr_at_one_percent(scores, labels))}


def _area_by_model(scores: Floats, labels: Bools) -> Floats:
    """Return one value for each model (row); the mean of the values is the AUC."""
    return area_by_unit(scores.ravel(), labels.ravel(), np.indices(scores.shape)[0].ravel())
