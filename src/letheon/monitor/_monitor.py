"""`Monitor`: a model, watched through a stream of requests."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.exceptions import CheckpointError, CheckpointWarning, warn_caller
from letheon.monitor._calibrate import (
    Calibration,
    Stage,
    floors,
    kinds_for,
    limits_from,
    measured,
    rehearsals,
    rehearse,
)
from letheon.monitor._decide import Seen, decide, guarantee_of
from letheon.monitor._judge import judge_for
from letheon.monitor._limits import Limit, Tally, scores_of
from letheon.monitor._panel import Panel, held_rows, in_memory, positions_of, train
from letheon.monitor._reading import History, Reading, Tolerances
from letheon.monitor._saved import record_of, restore
from letheon.monitor._store import Folder
from letheon.monitor._stretch import Stretch
from letheon.rows import Ids, Rows, as_ids
from letheon.seeds import library_seed, seed_from

if TYPE_CHECKING:
    from letheon.plot import MonitorDisplay

__all__ = ["Monitor"]

_RECENT = 5
_USUAL = Calibration()
_REFRESH = "monitor-refresh"


class Monitor:
    """A model that forgets, watched through a stream of requests (survey, section 6.3).

    After every request it estimates, without retraining, how far the model may be from a naively
    retrained one, and retrains (or advises to) before the tolerances are passed. For
    certifiability and effectiveness the survey proposes::

        cert ~ c SAPE(M_test(h_m), M_test(h*_ik))      eff ~ e |M_test(h_m) - M_test(h*_ik)|

    where ``h_m`` is the model after request m and ``h*_ik`` the last retrained one. This proxy
    sees nothing when the model does not move, or when gains and losses cancel. So the estimate
    here is ``c * score`` with one of five scores: the survey's, how far single outputs moved, how
    many rows left, and two that count how wrong the model was about those who left. Streams of
    requests are rehearsed at the start, on copies in which people who are still held play those
    who leave; they choose the score, and the factor such that the estimate reaches the tolerance
    no later than the truth in all but `Calibration.miss` of the rehearsals. At every retrain
    factors are raised where the truth was larger than the estimate (a running maximum).

    Parameters
    ----------
    model : fitted estimator with `forget`
        Freshly trained: its outputs on the test set stand for ``h*_i0``.
    X_test, y_test : array-like
        Rows that the model is judged by; never trained on.
    test_ids : sequence of int or of str, optional
        Whose test rows they are. A forgotten person leaves the test set too, and both performances
        are taken again on the rows that stay. None: nobody of the training set is in it.
    metric : callable, optional
        ``metric(y_true, y_pred)``. Default: the mean probability of the true label, the
        accuracy without `predict_proba`, R² for a regression.
    tolerances : Tolerances, optional
        What is still accepted.
    on_breach : {"retrain", "advise"}, default="retrain"
        Retrain when a tolerance may be passed, or only say so.
    retrain_with : (X, y) or (X, y, ids), optional
        The training rows, as they were given to `fit`. They are held in memory, and leave it with
        their people. Needed for every method that is not exact.
    calibration : Calibration or None, optional
        The rehearsals. None: no rehearsal, the survey's own proxy with c = e = 1 until the first
        retrain; it may well miss the first breach.
    hold_forgotten_until_retrain : bool, default=False
        Keep the rows of forgotten people until the next retrain, to measure certifiability on
        those very people. Whoever does this has not forgotten them yet; the default keeps nothing
        of a forgotten person, and recalibrates certifiability on people who are still held.
    folder : path, optional
        Where model, rows and history are committed together after every request. It is personal
        data.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the rehearsals.

    Attributes
    ----------
    model : estimator
        The model as it is now; another object after a retrain.
    history : History
        One `Reading` per request: numbers, never ids.
    limits : dict of str to Limit
        How "effectiveness" and "certifiability" are estimated.
    tolerances, calibration, on_breach
        As given.

    Notes
    -----
    Guarantee: if a stretch between two retrains is exchangeable with the rehearsed streams of one
    of their kinds, then the probability that a tolerance is passed while the decision was "keep"
    is at most ``Limit.miss`` for the score in use (conformal prediction; that the score was chosen
    on the same rehearsals is not covered, and `benchmarks/monitor.py` measures it). Streams of a
    kind that nobody rehearsed are not covered. It is about the two measures of the survey; it is
    no certificate of forgetting. For exact methods both are 0 by proof, and nothing is rehearsed.

    What stays of a forgotten person: no row and no id. Until the next retrain there are sums over
    all who left (how many rows, and how wrong the model was about them), and the history keeps the
    proxies that were computed from these sums. After a request of one person the sum is about that
    person; treat history and folder as confidential.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from letheon import NaiveUnlearner
    >>> from letheon.monitor import Monitor
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NaiveUnlearner(LogisticRegression(max_iter=500), random_state=0)
    >>> monitor = Monitor(model.fit(X[::2], y[::2]), X[1::2], y[1::2])
    >>> monitor.forget([3, 17]).decision
    'keep'
    """

    model: Any
    history: History
    limits: dict[str, Limit]

    def __init__(
        self,
        model: Any,
        X_test: Any,
        y_test: Any,
        *,
        test_ids: Any = None,
        metric: Callable[[Any, Any], Any] | None = None,
        tolerances: Tolerances | None = None,
        on_breach: Literal["retrain", "advise"] = "retrain",
        retrain_with: tuple[Any, ...] | None = None,
        calibration: Calibration | None = _USUAL,
        hold_forgotten_until_retrain: bool = False,
        folder: str | os.PathLike[str] | None = None,
        random_state: Any = None,
    ) -> None:
        if on_breach not in ("retrain", "advise"):
            raise ValueError(f"on_breach={on_breach!r} is neither 'retrain' nor 'advise'")
        self.model = model
        self.tolerances = Tolerances() if tolerances is None else tolerances
        self.on_breach = on_breach
        self.calibration = calibration
        self.hold_forgotten_until_retrain = bool(hold_forgotten_until_retrain)
        self.history = History()
        self._folder = _new_folder(folder)
        self._seed = seed_from(random_state)
        self._judge = judge_for(model, metric)
        self._rows = _training_rows(model, retrain_with)
        test = held_rows(X_test, y_test, test_ids)
        self._panel = Panel.seen_by(model, test, self._judge, knows_people=test_ids is not None)
        self._gone: Rows | None = None
        self._stretch = self._new_stretch(None)
        self._start()
        if self._folder is not None:
            self._commit()

    def forget(self, ids: Any) -> Reading:
        """Forget these people, in the model and in all rows held here, and look at the model.

        Parameters
        ----------
        ids : sequence of int or of str
            People to forget; see the model's own `forget`.

        Returns
        -------
        Reading
            What is known now, and whether the model was or should be retrained.

        Raises
        ------
        UnknownIdError, EmptyModelError
            As the model's own `forget`; nothing was changed.
        CheckpointError
            The folder cannot be written. The people are forgotten in memory, but not on the disk;
            call `save` when there is room.
        """
        people = as_ids(ids).distinct()
        panel = self._panel.without(people)
        wrongness = self._wrongness(people)
        receipt = self.model.forget(people.to_array())
        self._panel = panel
        self._stretch.n_people += len(people)
        self._stretch.tally.add(wrongness)
        self._drop(people)
        reading = self._look(len(people), receipt)
        self.history = self.history.with_(reading)
        if reading.decision == "retrain" and self.on_breach == "retrain":
            self._retrain_and_note()
        elif self._folder is not None:
            self._commit()
        return self.history[-1]

    def retrain(self) -> Reading | None:
        """Train afresh on the remaining rows now, and recalibrate.

        Returns
        -------
        Reading or None
            The last reading, with the truth that the retrain showed; None before any request.
        """
        self._retrain_and_note()
        return self.history[-1] if len(self.history) else None

    def predict(self, X: Any) -> Any:
        """Predict with the model as it is now."""
        return self.model.predict(X)

    @property
    def is_due(self) -> bool:
        """Whether the last decision was to retrain and that was not done."""
        return bool(
            len(self.history)
            and self.history[-1].decision == "retrain"
            and not self.history[-1].retrained
        )

    def save(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Commit everything to the folder; given one, this is the monitor's folder from now on."""
        if folder is not None:
            self._folder = _new_folder(folder)
        if self._folder is None:
            raise ValueError("this monitor has no folder; give one: save(folder)")
        self._commit()

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        metric: Callable[[Any, Any], Any] | None = None,
        trusted: Any = (),
    ) -> Self:
        """Return the monitor that was committed to a folder, and sweep what a kill left there.

        Parameters
        ----------
        folder : path
            The folder.
        metric : callable, optional
            The metric again, if one was given: functions are not saved.
        trusted : iterable of class, function or str, optional
            Classes of yours that the model may use; see `letheon.load`.

        Notes
        -----
        A cost function in ``Calibration.requests`` is not saved either; rehearsals after later
        retrains then do without it.
        """
        place = Folder(folder)
        parts, record = place.read()
        model = state.decode(parts["model"], trusted=trusted)
        monitor = cls.__new__(cls)
        restore(monitor, place, model, state.decode(parts["rows"]), record, metric)
        return monitor

    def plot(self) -> "MonitorDisplay":
        """Draw proxies, tolerances and retrains over the requests; needs matplotlib."""
        from letheon.plot import MonitorDisplay

        names = [*self.tolerances.watched()]
        return MonitorDisplay(
            [reading.request for reading in self.history],
            {name: [reading.proxies[name] for reading in self.history] for name in names},
            tolerances=self.tolerances.watched(),
            retrains=self.history.retrains,
        ).plot()

    def __rich__(self) -> Any:
        """Table of the last requests, and of every retrain."""
        return self.history.__rich__()

    def __str__(self) -> str:
        """One line for people."""
        return f"{type(self.model).__name__}: {self.history}"

    def _new_stretch(self, seconds: float | None) -> Stretch:
        kind, _, _ = guarantee_of(self.model)
        return Stretch(Tally(self._n_rows()), kind, seconds)

    def _n_rows(self) -> int:
        return len(self._rows) if self._rows is not None else int(self.model.n_rows_)

    @property
    def _is_exact(self) -> bool:
        return self._stretch.guaranteed == "exact"

    def _start(self) -> None:
        """Time one retrain and rehearse on it, so that the first stretch is not blind."""
        self.limits = {}
        if self._rows is None:
            return
        shadow = train(self.model, self._rows, in_memory=True)
        self._stretch.retrain_seconds = shadow.seconds
        if self._is_exact:
            return
        watched = self.tolerances.watched()
        if self.calibration is None:
            self.limits = {
                name: Limit("metric", 1.0, floors(name, len(self._panel), 1)["metric"], 1.0)
                for name in watched
            }
            return
        panel = self._panel.renewed(shadow.model)
        stage = Stage(shadow.model, panel, self._rows)
        streams = rehearsals(self.calibration, stage, watched, seed=self._seed)
        n_test, n_rows, miss = len(panel), len(self._rows), self.calibration.miss
        self.limits = limits_from(streams, watched, n_test=n_test, n_rows=n_rows, miss=miss)

    def _drop(self, people: Ids) -> None:
        """Take people out of the training rows held here."""
        if self._rows is None:
            return
        places = positions_of(self._rows, people)
        if self.hold_forgotten_until_retrain and not self._is_exact:
            leaving = self._rows.take(places)
            self._gone = leaving if self._gone is None else self._gone.joined(leaving)
        self._rows = self._rows.without(places)

    def _wrongness(self, people: Ids) -> NDArray[np.float64]:
        """Return how wrong the model is about the rows of people who are about to leave."""
        if self._rows is None or self._is_exact:
            return np.empty(0)
        places = positions_of(self._rows, people)
        return self._panel.wrongness_on(self.model, self._rows.take(places))

    def _look(self, n_people: int, receipt: Any) -> Reading:
        """Return the reading of a request that was just answered."""
        now, then, movement = self._panel.look(self.model)
        share, tally = 1 - self._n_rows() / self._stretch.tally.rows_then, self._stretch.tally
        names = self.tolerances.watched()
        self._stretch.note({n: scores_of(n, now, then, movement, tally) for n in names})
        kind, spent, budget = guarantee_of(self.model)
        seconds = float(receipt.seconds)
        reading = Reading(
            request=len(self.history) + 1,
            n_people=n_people,
            n_rows=int(receipt.n_rows),
            since_retrain=self._stretch.n_people,
            rows_left=self._n_rows(),
            n_test=len(self._panel),
            metric=now,
            metric_retrained=then,
            seconds=seconds,
            proxies=self._proxies(kind, seconds),
            guarantee=kind,
            spent=spent,
            budget=budget,
            residual=self._residual(),
        )
        decision, reasons = decide(self._seen(reading, share), self.tolerances)
        return replace(reading, decision=decision, reasons=reasons)

    def _proxies(self, kind: str, seconds: float) -> dict[str, float]:
        """Return the upper estimates of both properties, and the efficiency."""
        found = {}
        for name in self.tolerances.watched():
            peaks = self._stretch.peaks[name]
            found[name] = 0.0 if kind == "exact" else self.limits[name].estimate(peaks)
        timed = self._stretch.retrain_seconds
        if timed is not None and seconds > 0:
            found["efficiency"] = timed * self._n_rows() / self._stretch.tally.rows_then / seconds
        return found

    def _residual(self) -> float | None:
        """Return the gradient's norm per row, where it is wanted and the model offers it."""
        offered = getattr(self.model, "exact_residual", None)
        if self.tolerances.residual is None or offered is None:
            return None
        return float(offered()) / self._n_rows()

    def _seen(self, reading: Reading, share: float) -> Seen:
        recent = [*self.history[-_RECENT + 1 :], reading]
        rehearsed = None if self._is_exact or self.calibration is None else self.calibration.horizon
        return Seen(
            proxies=reading.proxies,
            share=share,
            horizon=rehearsed,
            guarantee=reading.guarantee,
            was_guaranteed=self._stretch.guaranteed,
            spent=reading.spent,
            budget=reading.budget,
            residual=reading.residual,
            speed_ups=tuple(r.proxies["efficiency"] for r in recent if "efficiency" in r.proxies),
        )

    def _retrain_and_note(self) -> None:
        """Retrain and commit; if training fails, commit that it is due and raise."""
        old = self.model
        try:
            truth, seconds = self._retrain()
        except BaseException:
            if self._folder is not None:
                self._commit()
            raise
        if len(self.history):
            last = replace(self.history[-1], retrained=True, retrain_seconds=seconds, truth=truth)
            self.history = self.history[:-1].with_(last)
        if self._folder is not None:
            self._commit()
        for message in _destroyed(old):
            warn_caller(message, CheckpointWarning)

    def _retrain(self) -> tuple[dict[str, float], float]:
        """Replace the model by a retrained one; return the truth about the old one."""
        if self._rows is None:
            raise ValueError(
                "this monitor holds no training rows to retrain on; give them at the start: "
                "retrain_with=(X, y, ids)"
            )
        retrained = train(self.model, self._rows)
        truth = measured(self._panel, self.model, retrained.model, self._gone)
        self._raise_limits(truth)
        stretch = self._stretch
        self._panel = self._panel.renewed(retrained.model)
        self.model, self._gone = retrained.model, None
        self._stretch = self._new_stretch(retrained.seconds)
        self._refresh(stretch.n_people)
        return truth, retrained.seconds

    def _raise_limits(self, truth: Mapping[str, float]) -> None:
        for name, limit in self.limits.items():
            if name in truth and name in self._stretch.peaks:
                self.limits[name] = limit.raised(truth[name], self._stretch.peaks[name])

    def _refresh(self, n_people: int) -> None:
        """Recalibrate certifiability on people who are still held: as many as left before."""
        rows, name = self._rows, "certifiability"
        wanted = self.calibration is not None and self.calibration.refresh
        if (
            rows is None
            or not wanted
            or name not in self.limits
            or self.hold_forgotten_until_retrain
        ):
            return
        if n_people == 0:
            return
        assert self.calibration is not None
        n_retrains = len(self.history.retrains)
        kinds = kinds_for(self.calibration, self._panel)
        rehearsal = rehearse(
            replace(
                self.calibration,
                horizon=min(n_people / len(rows.ids.distinct()), self.calibration.horizon),
                n_looks=1,
            ),
            Stage(in_memory(self.model, rows), self._panel, rows),
            {name: self.tolerances.watched()[name]},
            kind=kinds[n_retrains % len(kinds)],
            seed=library_seed(self._seed, _REFRESH, n_retrains),
        )[name]
        # One person alone may be an exception; what counts is a breach that would not be seen.
        last = {score: values[-1] for score, values in rehearsal.scores.items()}
        limit, truth = self.limits[name], rehearsal.truths[-1]
        if limit.estimate(last) < self.tolerances.watched()[name] < truth:
            self.limits[name] = limit.raised(truth, last)

    def _commit(self) -> None:
        """Write everything to the folder, whole or not at all."""
        assert self._folder is not None
        rows = {"test": self._panel.rows, "training": self._rows, "forgotten": self._gone}
        parts = {"model": state.encode(self.model), "rows": state.encode(rows)}
        try:
            resisting = self._folder.commit(parts, record_of(self))
        except OSError as error:
            raise CheckpointError(f"cannot write to {self._folder.path}: {error}") from error
        if resisting:
            warn_caller(
                f"{resisting[0]} could not be destroyed; it saw people who are forgotten",
                CheckpointWarning,
            )


def _training_rows(model: Any, given: tuple[Any, ...] | None) -> Rows | None:
    """Return the training rows to hold; an exact method can do without."""
    if given is None:
        if guarantee_of(model)[0] == "exact":
            return None
        raise ValueError(
            "proxies of a method that is not exact are calibrated by retraining: give the training "
            "rows, retrain_with=(X, y, ids)"
        )
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise ValueError("retrain_with must be (X, y) or (X, y, ids)")
    X, y, ids = given if len(given) == 3 else (*given, None)
    rows = held_rows(X, y, ids)
    if hasattr(model, "n_rows_") and len(rows) != model.n_rows_:
        raise ValueError(f"retrain_with has {len(rows)} rows and the model holds {model.n_rows_}")
    return rows


def _new_folder(folder: str | os.PathLike[str] | None) -> Folder | None:
    """Return the folder, unless another monitor lives there."""
    if folder is None:
        return None
    place = Folder(folder)
    if place.manifest.exists():
        raise FileExistsError(
            f"{place.manifest} is there already; continue with Monitor.load({str(folder)!r}), or "
            "choose another folder"
        )
    return place


def _destroyed(model: Any) -> list[str]:
    """Destroy what a model that was replaced keeps on a disk; return warnings."""
    destroy = getattr(model, "_destroy_files", None)
    return [] if destroy is None else list(destroy())
