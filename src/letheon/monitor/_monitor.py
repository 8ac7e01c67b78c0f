"""`Monitor`: a model, watched through a stream of requests."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.data import Ids, Rows, as_ids
from letheon.exceptions import CheckpointError
from letheon.monitor._calibrate import (
    Calibration,
    Stage,
    floors,
    kinds_for,
    limits_from,
    measure_truth,
    rehearsals,
    rehearse,
)
from letheon.monitor._given import (
    adopt,
    assumptions,
    in_training,
    new_folder,
    proof_gap,
    require_classes,
    require_metric,
    require_model,
    test_rows,
    training_rows,
    warn_of_noise,
)
from letheon.monitor._limits import Limit, Stretch, Tally, scores_of
from letheon.monitor._panel import (
    Panel,
    Removal,
    finish_removal,
    in_memory,
    judge_for,
    positions_of,
    time_removal,
    train,
)
from letheon.monitor._reading import (
    History,
    Reading,
    Seen,
    Tolerances,
    decide,
    guarantee_of,
    say_if_useless,
)
from letheon.monitor._store import Folder, destroyed, record_of, restore, warn_about
from letheon.receipt import Receipt
from letheon.seeds import library_seed, seed_from

if TYPE_CHECKING:
    from letheon.plot import MonitorDisplay


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
    here is ``c * score`` with one of six scores: the survey's, how far single outputs moved, how
    many rows left, two that count how wrong the model was about those who left, and a product of
    powers of these five. Streams of requests are rehearsed at the start, on copies in which people
    who are still held play those who leave; they choose the score, and the factor such that the
    estimate passes the tolerance no later than the truth in all but `Calibration.miss` of the
    rehearsals. At every retrain factors are raised where the truth was larger than the estimate (a
    running maximum).

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
    n_retrains : int
        Retrains so far, those by hand included.
    limits : dict of str to Limit
        How "effectiveness" and "certifiability" are estimated.
    receipt : Receipt or None
        What the model's own `forget` said last; it is not saved.
    tolerances, calibration, on_breach
        As given.

    Notes
    -----
    Guarantee: if a stretch between two retrains is exchangeable with the rehearsed streams of one
    of their kinds, then the probability that a tolerance is passed while the decision was "keep"
    is at most the sum of ``Limit.miss`` over the tolerances (conformal prediction), up to breaches
    that are over before the next look of a rehearsal. With the default number of streams that is
    a weak promise, 1 in 11 for each tolerance; in the simulations of `benchmarks/monitor.py` far
    fewer are missed. That later stretches are like rehearsals that start after some people have
    left is an assumption. Streams of a kind that was not rehearsed are not covered: whoever leaves
    one out says why (`Calibration.assume`), and every reading quotes it. It is
    about the two measures of the survey; it is no certificate of forgetting. For exact methods both
    are 0 by proof, and nothing is rehearsed.

    What stays of a forgotten person: no row and no id. Until the next retrain there are sums over
    all who left (how many rows, and how wrong the model was about them), and the outputs of the
    last retrained model, which knew them, on every test row: with the model of now they are what an
    attacker needs who compares before and after. The history keeps proxies that were computed from
    these sums; after a request of one person a sum is about that person. The limits were
    calibrated on rehearsals with people who may leave later. Treat history and folder as
    confidential.

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
    receipt: Receipt | None = None

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
        require_model(model)
        require_metric(metric)
        self.model = model
        self.tolerances = Tolerances() if tolerances is None else tolerances
        if not isinstance(self.tolerances, Tolerances):
            found = f"{type(tolerances).__module__}.{type(tolerances).__qualname__}"
            raise TypeError(f"tolerances must be letheon.monitor.Tolerances(...), not a {found}")
        self.on_breach = on_breach
        self.calibration = calibration
        self.hold_forgotten_until_retrain = bool(hold_forgotten_until_retrain)
        self.history = History()
        self.n_retrains = 0
        self._folder = new_folder(folder)
        self._seed = seed_from(random_state)
        self._judge = judge_for(model, metric)
        self._rows = training_rows(model, retrain_with)
        test = test_rows(model, X_test, y_test, test_ids)
        self._panel = Panel.seen_by(model, test, self._judge, knows_people=test_ids is not None)
        self._gone: Rows | None = None
        self._stretch = self._new_stretch(None)
        self._start()
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
            As the model's own `forget`, or no training row of a class would be left for a method
            that is not exact; nothing was changed. A person who has test rows only leaves these.
        CheckpointError
            The folder cannot be written, or another process has changed it. The people are
            forgotten in memory, but not on the disk; call `save` when there is room, or load again.
        Exception
            Whatever the metric raises. The people are forgotten, and a retrain is due.
        """
        people = as_ids(ids).distinct()
        panel = self._panel.without(people)
        leaving = in_training(people, self._panel, self._rows, self.model)
        if not self._is_exact:
            require_classes(leaving, self._rows, self.model)
        wrongness = self._wrongness(leaving)
        self.receipt, asked = time_removal(self.model, leaving.to_array())
        self._panel = panel
        self._stretch.n_people += len(leaving)
        self._stretch.tally.add(wrongness)
        self._drop(leaving)
        self._take_reading(len(people), asked)
        if self.history[-1].decision == "retrain" and self.on_breach == "retrain":
            self._retrain_and_note()
        else:
            self._commit()
        reading: Reading = self.history[-1]
        return reading

    def retrain(self) -> Reading | None:
        """Train afresh on the remaining rows now, and recalibrate.

        Returns
        -------
        Reading or None
            The last reading, with the truth that the retrain showed; None before any request.
        """
        self._retrain_and_note()
        return self.history[-1] if len(self.history) else None

    def adopt(self, model: Any, ids: Any = (), *, seconds: float | None = None) -> Reading | None:
        """Go on with a model that somebody else trained afresh on the remaining rows.

        The same as `retrain`, but the training was done already. Files that the old model keeps on
        a disk are left to its owner.

        Parameters
        ----------
        model : fitted estimator with `forget`
            Trained on the rows held here, less those of `ids`.
        ids : sequence of int or of str, optional
            People who leave with this retrain and were not forgotten before. They leave the
            training and test rows here too, and no truth is measured: the old model holds them.
        seconds : float, optional
            How long the training took. None: as the last one, by the ratio of rows.

        Returns
        -------
        Reading or None
            Of the people who left with it; without `ids` the last one, or None before any request.

        Raises
        ------
        UnknownIdError, ValueError
            Nobody knows one of the people, or the model does not hold those who are left. Nothing
            was changed.
        """
        return adopt(self, model, ids, seconds)

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
        """Commit everything to the folder.

        Parameters
        ----------
        folder : path, optional
            Another folder: everything moves there. The old one is destroyed, because it would keep
            people who are forgotten later.
        """
        old = self._folder
        if folder is not None and (old is None or not old.is_at(folder)):
            self._folder = new_folder(folder)
        if self._folder is None:
            raise ValueError("this monitor has no folder; give one: save(folder)")
        self._commit()
        if old is not None and old is not self._folder:
            warn_about(old.destroy())

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        metric: Callable[[Any, Any], Any] | None = None,
        trusted: Any = (),
        max_memory: int | None = None,
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
        max_memory : int, optional
            Bytes that reading a part may take; see `letheon.load`.

        Notes
        -----
        A cost function in ``Calibration.requests`` is not saved either; rehearsals after later
        retrains then do without it.
        """
        require_metric(metric)
        place = Folder(folder)
        parts, record = place.read()
        model = state.decode(parts["model"], trusted=trusted, max_memory=max_memory)
        rows = state.decode(parts["rows"], max_memory=max_memory)
        monitor = cls.__new__(cls)
        restore(monitor, place, model, rows, record, metric)
        return monitor

    def plot(self) -> "MonitorDisplay":
        """Draw proxies, tolerances and retrains over the requests; needs matplotlib."""
        from letheon.plot import MonitorDisplay

        names = [*self.tolerances.watched()]
        readings = [*self.history]
        return MonitorDisplay(
            [reading.request for reading in readings],
            {name: [reading.proxies[name] for reading in readings] for name in names},
            tolerances=self.tolerances.watched(),
            retrains=self.history.retrains,
            truths={name: [r.truth.get(name, math.nan) for r in readings] for name in names},
        ).plot()

    def __rich__(self) -> Any:
        """Table of the last requests, and of every retrain."""
        return self.history.__rich__()

    def __str__(self) -> str:
        """One line for people."""
        done = (
            f"{type(self.model).__name__}: {len(self.history)} requests, {self.n_retrains} retrains"
        )
        return "; ".join([done, *self._remarks(*(r.retrained for r in self.history))])

    def _remarks(self, *retrained: bool) -> tuple[str, ...]:
        """Return what a decision takes for granted, and whether the monitor saves anything."""
        if self._is_exact:
            return ()
        rehearses = self.calibration is not None and self.calibration.refresh
        rehearses = rehearses and not self.hold_forgotten_until_retrain
        rehearses = rehearses and "certifiability" in self.limits
        useless = say_if_useless(retrained, self.limits, 2 if rehearses else 1)
        return (*assumptions(self.calibration), *([useless] if useless else []))

    def _new_stretch(self, seconds: float | None) -> Stretch:
        kind, _, _ = guarantee_of(self.model)
        n_people = 0 if self._rows is None else len(self._rows.ids.distinct())
        return Stretch(Tally(self._n_rows()), n_people, kind, seconds)

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
        shadow, self._stretch.retrain_seconds = train(self.model, self._rows, in_memory=True)
        if self._is_exact:
            return
        watched = self.tolerances.watched()
        warn_of_noise(self._panel, self.model, shadow, watched)
        if self.calibration is None:
            self.limits = {
                name: Limit("metric", 1.0, floors(name, len(self._panel), 1)["metric"], 1.0)
                for name in watched
            }
            return
        panel = self._panel.renewed(shadow)
        stage = Stage(shadow, panel, self._rows)
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
        if self._rows is None or self._is_exact or len(people) == 0:
            return np.empty(0)
        places = positions_of(self._rows, people)
        return self._panel.wrongness_on(self.model, self._rows.take(places))

    def _take_reading(self, n_people: int, asked: Removal) -> None:
        """Add the reading of a request that was just answered; if that fails, a retrain is due."""
        try:
            row, _ = self._panel.rows.part(0, 1)
            reading = self._look(n_people, finish_removal(self.model, asked, row))
        except BaseException as error:
            blank = self._reading(n_people, asked, (math.nan, math.nan))
            reasons = (f"the model could not be judged: {error!r}",)
            failed = replace(blank, decision="retrain", reasons=reasons)
            self.history = self.history.with_(failed)
            self._commit()
            raise
        self.history = self.history.with_(reading)

    def _look(self, n_people: int, receipt: Removal) -> Reading:
        """Return the reading of a request that was just answered."""
        now, then, movement = self._panel.look(self.model)
        names, tally = self.tolerances.watched(), self._stretch.tally
        self._stretch.note({n: scores_of(n, now, then, movement, tally) for n in names})
        reading = self._reading(n_people, receipt, (now, then))
        reading = replace(
            reading,
            proxies=self._proxies(reading.guarantee, reading.seconds),
            residual=self._residual(),
        )
        is_judged = all(map(math.isfinite, (now, then, movement)))
        seen = self._seen(reading)._replace(is_judged=is_judged)
        decision, reasons = decide(seen, self.tolerances)
        if decision == "keep" and reading.guarantee != "exact":
            reasons = (reasons[0], *proof_gap(self.limits, self.calibration), *reasons[1:])
        done = [r.retrained for r in self.history]
        reasons = (*reasons, *self._remarks(*done, decision == "retrain"))
        return replace(reading, decision=decision, reasons=reasons)

    def _reading(self, n_people: int, receipt: Any, metrics: tuple[float, float]) -> Reading:
        """Return a reading with everything that needs no estimate."""
        kind, spent, budget = guarantee_of(self.model)
        return Reading(
            request=len(self.history) + 1,
            n_people=n_people,
            n_rows=int(receipt.n_rows),
            since_retrain=self._stretch.n_people,
            rows_left=self._n_rows(),
            n_test=len(self._panel),
            metric=metrics[0],
            metric_retrained=metrics[1],
            seconds=float(receipt.seconds),
            proxies=dict.fromkeys(self.tolerances.watched(), math.inf),
            guarantee=kind,
            spent=spent,
            budget=budget,
        )

    def _proxies(self, kind: str, seconds: float) -> dict[str, float]:
        """Return the upper estimates of both properties, and the efficiency."""
        found = {}
        for name in self.tolerances.watched():
            peaks = self._stretch.peaks[name]
            # A model that was exact and is not any more was never rehearsed: nothing bounds it.
            limit = self.limits.get(name)
            unproved = math.inf if limit is None else limit.estimate(peaks)
            found[name] = 0.0 if kind == "exact" else unproved
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

    def _seen(self, reading: Reading) -> Seen:
        recent = [*self.history[-_RECENT + 1 :], reading]
        then, horizon = max(self._stretch.people_then, 1), None
        if self.calibration is not None and not self._is_exact:
            horizon = self.calibration.n_leaving(then) / then
        return Seen(
            reading,
            share=self._stretch.n_people / then,
            horizon=horizon,
            was_guaranteed=self._stretch.guaranteed,
            speed_ups=tuple(r.proxies["efficiency"] for r in recent if "efficiency" in r.proxies),
        )

    def _retrain_and_note(self) -> None:
        """Retrain and commit; if training fails, commit that it is due and raise."""
        old, n_people = self.model, self._stretch.n_people
        try:
            truth, seconds = self._retrain()
        except BaseException:
            self._commit()
            raise
        self._note_retrain(truth, seconds)
        try:
            self._refresh(n_people)
        finally:
            self._commit()
            warn_about(destroyed(old))

    def _retrain(self) -> tuple[dict[str, float], float]:
        """Replace the model by a retrained one; return the truth about the old one."""
        if self._rows is None:
            raise ValueError(
                "this monitor holds no training rows to retrain on; give them at the start: "
                "retrain_with=(X, y, ids)"
            )
        retrained, seconds = train(self.model, self._rows)
        truth = measure_truth(self._panel, self.model, retrained, self._gone)
        self._replace_model(retrained, self._panel.renewed(retrained), truth, seconds)
        return truth, seconds

    def _replace_model(
        self, model: Any, panel: Panel, truth: Mapping[str, float], seconds: float | None
    ) -> None:
        """Go on with a retrained model; the truth about the old one raises the limits."""
        self._raise_limits(truth)
        self._panel, self.model, self._gone = panel, model, None
        self._stretch = self._new_stretch(seconds)

    def _note_retrain(self, truth: dict[str, float], seconds: float | None) -> None:
        """Count a retrain, and write it into the last reading."""
        self.n_retrains += 1
        if len(self.history):
            last = replace(self.history[-1], retrained=True, retrain_seconds=seconds, truth=truth)
            self.history = self.history[:-1].with_(last)

    def _raise_limits(self, truth: Mapping[str, float]) -> None:
        for name, limit in self.limits.items():
            if name in truth and name in self._stretch.peaks:
                self.limits[name] = limit.raised(truth[name], self._stretch.peaks[name])

    def _refresh(self, n_people: int) -> None:
        """Recalibrate certifiability on people who are still held: as many as left before."""
        rows, name, calibration = self._rows, "certifiability", self.calibration
        if rows is None or name not in self.limits or self.hold_forgotten_until_retrain:
            return
        if calibration is None or not calibration.refresh or n_people == 0:
            return
        kinds = kinds_for(calibration, self._panel)
        rehearsal = rehearse(
            replace(calibration, n_looks=1),
            Stage(in_memory(self.model, rows), self._panel, rows),
            {name: self.tolerances.watched()[name]},
            kind=kinds[self.n_retrains % len(kinds)],
            seed=library_seed(self._seed, _REFRESH, self.n_retrains),
            n_leaving=min(n_people, calibration.n_leaving(self._stretch.people_then)),
        )[name]
        # One person alone may be an exception; what counts is a breach that would not be seen.
        last = {score: values[-1] for score, values in rehearsal.scores.items()}
        limit, truth = self.limits[name], rehearsal.truths[-1]
        if limit.estimate(last) <= self.tolerances.watched()[name] < truth:
            self.limits[name] = limit.raised(truth, last)

    def _commit(self) -> None:
        """Write everything to the folder, if there is one, whole or not at all."""
        if self._folder is None:
            return
        rows = {"test": self._panel.rows, "training": self._rows, "forgotten": self._gone}
        parts = {"model": state.encode(self.model), "rows": state.encode(rows)}
        try:
            resisting = self._folder.commit(parts, record_of(self))
        except CheckpointError:
            raise
        except OSError as error:
            raise CheckpointError(f"cannot write to {self._folder.path}: {error}") from error
        warn_about(resisting)
