"""`Monitor`: a model that is monitored during a stream of requests."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from letheon import state
from letheon.data import Rows, as_ids
from letheon.evaluation import require_function
from letheon.exceptions import CheckpointError, GuaranteeWarning, warn_caller
from letheon.monitor import _calibrate, _panel, _reading, _store
from letheon.monitor._calibrate import Calibration, StreamStart, measure_truth
from letheon.monitor._limits import Limit, RetrainInterval, Tally, compute_scores
from letheon.monitor._panel import Judge, Panel, choose_judge, find_positions, read_guarantee
from letheon.monitor._reading import DecisionInputs, History, MonitorTolerances, Reading
from letheon.monitor._store import Folder, make_record, new_folder, restore
from letheon.receipt import Receipt
from letheon.seeds import seed_from

if TYPE_CHECKING:
    from letheon.plot import MonitorDisplay


_RECENT = 5
_USUAL = Calibration()


class Monitor:
    """Monitor of a model during a stream of requests (survey, section 6.3).

    After every request it estimates, without retraining, how far the model may be from a retrained
    model. It retrains, or advises to retrain, before a tolerance is exceeded. For certifiability
    and effectiveness the survey proposes::

        cert ~ c SAPE(M_test(h_m), M_test(h*_ik))      eff ~ e |M_test(h_m) - M_test(h*_ik)|

    where ``h_m`` is the model after request m and ``h*_ik`` the last retrained model. This proxy is
    0 when the model does not change, or when gains and losses cancel. So the estimate is ``c *
    score`` with one of six scores: the survey's proxy, the change of single outputs, the number of
    removed rows, two scores from the errors of the model on the removed rows, and a product of
    powers of these five. Rehearsals on copies determine score and factor, so that the estimate
    exceeds the tolerance no later than the true value in all but a share `Calibration.miss` of the
    streams. A retrain raises a factor if the true value was above the estimate.

    Parameters
    ----------
    model : fitted estimator with `forget`
        A newly trained model. It serves as the first retrained model, ``h*_i0``.
    X_test, y_test : array-like
        Rows on which the model is evaluated; they are never used for training.
    test_ids : sequence of int or of str, optional
        Ids of the test rows. A forgotten person is removed from the test set too, and both
        performances are computed again on the remaining test rows. None means that no person has
        both training and test rows.
    metric : callable, optional
        ``metric(y_true, y_pred)``. By default the mean probability of the true label, the accuracy
        for classifiers without `predict_proba`, and R² for regression.
    tolerances : MonitorTolerances, optional
        The limits to enforce.
    on_breach : {"retrain", "advise"}, default="retrain"
        Whether to retrain when a tolerance may be exceeded, or only to report it.
    retrain_with : (X, y) or (X, y, ids), optional
        The training rows, as passed to `fit`. They are kept in memory; rows of forgotten people are
        removed. Required for every method that is not exact.
    calibration : Calibration or None, optional
        Settings of the rehearsals. None means no rehearsals: the survey's proxy is used with c = e
        = 1 until the first retrain, and may miss the first breach.
    hold_forgotten_until_retrain : bool, default=False
        Whether to keep the rows of forgotten people until the next retrain, to measure
        certifiability on them. Until then these rows are not erased. By default no row of a
        forgotten person is kept, and certifiability is recalibrated on remaining people.
    folder : path, optional
        Directory to which model, rows and history are written after every request. It contains
        personal data.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the rehearsals.

    Attributes
    ----------
    model : estimator
        The current model; a retrain replaces the object.
    history : History
        One `Reading` per request: numbers, never ids.
    n_retrains : int
        Number of retrains so far, including calls of `retrain`.
    limits : dict of str to Limit
        How "effectiveness" and "certifiability" are estimated.
    receipt : Receipt or None
        The last receipt of the model; it is not saved.

    Notes
    -----
    Guarantee: if the requests between two retrains are exchangeable with the rehearsed streams of
    one kind, the probability that a tolerance is exceeded while the decision was "keep" is at most
    the sum of ``Limit.miss`` over the tolerances (conformal prediction). Breaches that end before
    the next measurement of a rehearsal are excluded. The default number of streams proves 1 in 11
    for each tolerance; in the simulations of `benchmarks/monitor.py` far fewer are missed. This
    assumes that later intervals resemble rehearsals that start after some removals. Streams of a
    kind that was not rehearsed are not covered; `Calibration.assume` states why they do not occur,
    and every reading quotes it. The guarantee covers these two measures, not forgetting itself. For
    exact methods both measures are 0 by proof.

    No row or id of a forgotten person is kept. Until the next retrain, the monitor stores sums over
    all removed rows, and for every test row the output of the last retrained model, which was
    trained on them. The history contains proxies computed from these sums; after a request for one
    person, a sum is about that person. Treat the history and the folder as confidential.

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
        tolerances: MonitorTolerances | None = None,
        on_breach: Literal["retrain", "advise"] = "retrain",
        retrain_with: tuple[Any, ...] | None = None,
        calibration: Calibration | None = _USUAL,
        hold_forgotten_until_retrain: bool = False,
        folder: str | os.PathLike[str] | None = None,
        random_state: Any = None,
    ) -> None:
        if on_breach not in ("retrain", "advise"):
            raise ValueError(f"on_breach={on_breach!r} is unknown; expected 'retrain' or 'advise'")
        _panel.require_model(model)
        if metric is not None:
            require_function(metric)
        self.model = model
        self.tolerances = MonitorTolerances() if tolerances is None else tolerances
        if not isinstance(self.tolerances, MonitorTolerances):
            kind = f"{type(tolerances).__module__}.{type(tolerances).__qualname__}"
            raise TypeError(
                f"tolerances must be letheon.monitor.MonitorTolerances(...), not a {kind}"
            )
        self.on_breach = on_breach
        self.calibration = calibration
        self.hold_forgotten_until_retrain = bool(hold_forgotten_until_retrain)
        self.history = History()
        self.n_retrains = 0
        self._folder = new_folder(folder)
        self._seed = seed_from(random_state)
        self._rows = _panel.training_rows(model, retrain_with)
        test, judge = _panel.test_rows(model, X_test, y_test, test_ids), choose_judge(model, metric)
        self._panel = Panel.from_model(model, test, judge, knows_people=test_ids is not None)
        self._forgotten: Rows | None = None
        self._interval = self._new_interval(None)
        self._calibrate_limits()
        self._commit()

    def forget(self, ids: Any) -> Reading:
        """Forget these ids in the model and in all rows of the monitor, then evaluate the model.

        Parameters
        ----------
        ids : sequence of int or of str
            People to forget; see the model's own `forget`.

        Returns
        -------
        Reading
            The estimates, and whether the model was or should be retrained.

        Raises
        ------
        UnknownIdError, EmptyModelError
            Raised by the model's `forget`, or if no training row of a class would remain for a
            method that is not exact; nothing was changed. For a person with test rows only, these
            rows are removed.
        CheckpointError
            The folder cannot be written, or another process has changed it. The people are
            forgotten in memory, but not on the disk; call `save` when the problem is solved, or
            load again.
        Exception
            Any error of the metric. The people are forgotten, and a retrain is due.
        """
        people = as_ids(ids).distinct()
        panel = self._panel.without(people)
        leaving_ids = _panel.find_model_ids(people, self._panel, self._rows, self.model)
        rows, left, wrongness = None, self._rows, np.empty(0)
        if self._rows is not None:
            places = find_positions(self._rows, leaving_ids)
            rows, left = self._rows.take(places), self._rows.without(places)
            if not self._is_exact:
                _panel.require_classes(self.model, self._rows, places)
                if len(rows):
                    wrongness = self._panel.compute_wrongness(self.model, rows)
        start = time.perf_counter()
        self.receipt = self.model.forget(leaving_ids.to_array()) if len(leaving_ids) else None
        seconds = time.perf_counter() - start if len(leaving_ids) else 0.0
        self._panel, self._rows = panel, left
        self._interval.n_people += len(leaving_ids)
        self._interval.tally.add(wrongness)
        if rows is not None and self.hold_forgotten_until_retrain and not self._is_exact:
            self._forgotten = rows if self._forgotten is None else self._forgotten.concat(rows)
        self._add_reading(len(people), seconds)
        if self.history[-1].decision == "retrain" and self.on_breach == "retrain":
            self.retrain()
        else:
            self._commit()
        reading: Reading = self.history[-1]
        return reading

    def retrain(self) -> Reading | None:
        """Retrain on the remaining rows now, and recalibrate.

        Returns
        -------
        Reading or None
            The last reading, with the true values that the retrain measured; None before any
            request.
        """
        old, n_people = self.model, self._interval.n_people
        try:
            if self._rows is None:
                raise ValueError(
                    "this monitor has no training rows for a retrain; pass them to Monitor: "
                    "retrain_with=(X, y, ids)"
                )
            model, seconds = _panel.train_fresh(old, self._rows)
            truth = measure_truth(self._panel, old, model, self._forgotten)
            panel = self._panel.with_outputs_of(model)
        except BaseException:
            self._commit()  # the retrain is due
            raise
        self._replace_model(model, panel, truth, seconds)
        self._record_retrain(truth, seconds)
        try:
            self._recalibrate(n_people)
        finally:
            self._commit()
            _store.warn_about_files(_store.destroy_model_files(old))
        return self.history[-1] if len(self.history) else None

    def adopt(self, model: Any, ids: Any = (), *, seconds: float | None = None) -> Reading | None:
        """Continue with a model that was trained elsewhere on the remaining rows.

        This is like `retrain`, but without training. The files of the old model are not deleted.

        Parameters
        ----------
        model : fitted estimator with `forget`
            A model trained on the monitor's training rows without those of `ids`.
        ids : sequence of int or of str, optional
            Ids that this retrain removes and that were not forgotten before. Their training and
            test rows are removed too. No true value is measured, because the old model was trained
            on these ids.
        seconds : float, optional
            Duration of the training; by default that of the last training, scaled by the ratio of
            rows.

        Returns
        -------
        Reading or None
            The reading for the removal of `ids`; without `ids` the last reading, if there is one.

        Raises
        ------
        UnknownIdError, ValueError
            An id is unknown, or the model does not have the remaining ids. Nothing was changed.
        """
        _panel.require_model(model)
        people = as_ids(ids).distinct()
        panel, rows, leaving_ids = self._panel, self._rows, people
        if len(people):
            leaving_ids = _panel.find_model_ids(people, panel, rows, self.model)
            panel = panel.without(people)
            rows = None if rows is None else rows.without(find_positions(rows, leaving_ids))
        _panel.check_remaining(self.model, model, rows, leaving_ids)
        panel, truth = panel.with_outputs_of(model), {}
        if not len(people):
            # Without `ids` the old model has forgotten all removed rows, so a comparison is
            # possible.
            with contextlib.suppress(Exception):
                truth = measure_truth(self._panel, self.model, model, self._forgotten)
        n_rows, n_people, before = self._n_rows(), self._interval.n_people, self._interval
        n_left = len(rows) if rows is not None else int(model.n_rows_)
        if seconds is None and before.retrain_seconds is not None:
            seconds = before.retrain_seconds * n_left / before.tally.rows_then
        self._rows = rows
        self._replace_model(model, panel, truth, seconds)
        if len(people):
            self._record_removal(len(people), n_rows - n_left, seconds)
        else:
            self._record_retrain(truth, seconds)
        try:
            self._recalibrate(n_people)
        except Exception as error:  # noqa: BLE001  (a rehearsal runs the caller's own functions)
            # The model was replaced already, so an error must not be raised.
            text = f"the limits could not be recalibrated after a retrain: {error!r}"
            warn_caller(text, GuaranteeWarning)
        finally:
            self._commit()
        return self.history[-1] if len(self.history) else None

    def predict(self, X: Any) -> Any:
        """Return the predictions of the current model for the rows in X."""
        return self.model.predict(X)

    @property
    def is_due(self) -> bool:
        """Whether the last decision was to retrain, and the model has not been retrained since."""
        return any(r.decision == "retrain" and not r.retrained for r in self.history[-1:])

    def save(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Write the model, the rows and the history to the folder.

        Parameters
        ----------
        folder : path, optional
            A new folder, which is used from now on. The old folder is deleted, because it would
            keep data of people who are forgotten later.
        """
        old = self._folder
        if folder is not None and (old is None or not old.is_at(folder)):
            self._folder = new_folder(folder)
        if self._folder is None:
            raise ValueError("this monitor has no folder; pass one: save(folder)")
        self._commit()
        if old is not None and old is not self._folder:
            _store.warn_about_files(old.destroy())

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        metric: Callable[[Any, Any], Any] | None = None,
        trusted: Any = (),
        max_memory: int | None = None,
    ) -> Self:
        """Return the monitor that was saved to a folder; delete leftovers of a killed process.

        Parameters
        ----------
        folder : path
            The folder.
        metric : callable, optional
            The same metric as in the constructor, if any: functions are not saved.
        trusted : iterable of class, function or str, optional
            Your own classes that the model may use; see `letheon.load`.
        max_memory : int, optional
            Maximum memory for reading a part, in bytes; see `letheon.load`.

        Notes
        -----
        A cost function in ``Calibration.requests`` is not saved either; later rehearsals do not use
        it.
        """
        if metric is not None:
            require_function(metric)
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

        names = [*self.tolerances.get_watched()]
        readings = [*self.history]
        return MonitorDisplay(
            [reading.request for reading in readings],
            {name: [reading.proxies[name] for reading in readings] for name in names},
            tolerances=self.tolerances.get_watched(),
            retrains=self.history.retrains,
            truths={name: [r.truth.get(name, math.nan) for r in readings] for name in names},
        ).plot()

    def __rich__(self) -> Any:
        """Return a table of the last requests, and of every request with a retrain."""
        return self.history.__rich__()

    def __str__(self) -> str:
        """Return the numbers of requests and retrains, and remarks, in one line."""
        model, n_requests = type(self.model).__name__, len(self.history)
        done = f"{model}: {n_requests} requests, {self.n_retrains} retrains"
        return "; ".join([done, *self._list_remarks(*(r.retrained for r in self.history))])

    def _list_remarks(self, *retrained: bool) -> tuple[str, ...]:
        """Return the assumptions as texts, and a note if the monitor saves no trainings."""
        if self._is_exact:
            return ()
        useless = _reading.explain_no_saving(retrained, self.limits, 2 if self._is_refreshed else 1)
        return (*_reading.assumptions(self.calibration), *([useless] if useless else []))

    def _new_interval(self, seconds: float | None) -> RetrainInterval:
        kind, _, _ = read_guarantee(self.model)
        n_people = 0 if self._rows is None else len(self._rows.ids.distinct())
        return RetrainInterval(Tally(self._n_rows()), n_people, kind, seconds)

    def _n_rows(self) -> int:
        return len(self._rows) if self._rows is not None else int(self.model.n_rows_)

    @property
    def _judge(self) -> Judge:
        return self._panel.judge

    @property
    def _is_exact(self) -> bool:
        return self._interval.guaranteed == "exact"

    @property
    def _is_refreshed(self) -> bool:
        """Whether certifiability is rehearsed again after a retrain."""
        refreshes = self.calibration is not None and self.calibration.refresh
        keeps_rows = self.hold_forgotten_until_retrain
        return refreshes and not keeps_rows and "certifiability" in self.limits

    def _calibrate_limits(self) -> None:
        """Time one retrain, and calibrate the first limits by rehearsals with the new model."""
        self.limits = {}
        if self._rows is None:
            return
        shadow, self._interval.retrain_seconds = _panel.train_fresh(
            self.model, self._rows, in_memory=True
        )
        if self._is_exact:
            return
        watched = self.tolerances.get_watched()
        _calibrate.warn_of_noise(self._panel, self.model, shadow, watched)
        start = StreamStart(shadow, self._panel.with_outputs_of(shadow), self._rows)
        self.limits = _calibrate.make_limits(self.calibration, start, watched, seed=self._seed)

    def _add_reading(self, n_people: int, seconds: float) -> None:
        """Add the reading of a request that was just applied; if that fails, a retrain is due."""
        n_rows = 0 if self.receipt is None else int(self.receipt.n_rows)
        try:
            if self.receipt is not None:
                seconds += _panel.time_deferred_work(self.model, self._panel.rows.slice(0, 1)[0])
            reading = self._judge_request(n_people, n_rows, seconds)
        except BaseException as error:
            reasons = (f"the model could not be judged: {error!r}",)
            blank = self._new_reading(n_people, n_rows, seconds)
            failed = replace(blank, decision="retrain", reasons=reasons)
            self.history = self.history.with_reading(failed)
            self._commit()
            raise
        self.history = self.history.with_reading(reading)

    def _judge_request(self, n_people: int, n_rows: int, seconds: float) -> Reading:
        """Return the reading of a request that was just applied."""
        now, then, movement = self._panel.compare_models(self.model)
        names, tally = self.tolerances.get_watched(), self._interval.tally
        self._interval.update_peaks(
            {n: compute_scores(n, now, then, movement, tally) for n in names}
        )
        reading, residual = self._new_reading(n_people, n_rows, seconds, now, then), None
        if self.tolerances.residual is not None and hasattr(self.model, "exact_residual"):
            residual = float(self.model.exact_residual()) / self._n_rows()
        proxies = self._estimate_proxies(reading.guarantee, seconds)
        reading = replace(reading, proxies=proxies, residual=residual)
        recent = [*self.history[-_RECENT + 1 :], reading]
        people_then, horizon = max(self._interval.people_then, 1), None
        if self.calibration is not None and not self._is_exact:
            horizon = self.calibration.n_removed(people_then) / people_then
        inputs = DecisionInputs(
            reading,
            share=self._interval.n_people / people_then,
            horizon=horizon,
            was_guaranteed=self._interval.guaranteed,
            speed_ups=tuple(r.proxies["efficiency"] for r in recent if "efficiency" in r.proxies),
            is_judged=all(map(math.isfinite, (now, then, movement))),
        )
        decision, reasons = _reading.make_decision(inputs, self.tolerances)
        if decision == "keep" and reading.guarantee != "exact":
            notes = _reading.note_proof_gap(self.limits, self.calibration)
            reasons = (reasons[0], *notes, *reasons[1:])
        done = [r.retrained for r in self.history]
        reasons = (*reasons, *self._list_remarks(*done, decision == "retrain"))
        return replace(reading, decision=decision, reasons=reasons)

    def _new_reading(
        self,
        n_people: int,
        n_rows: int,
        seconds: float,
        now: float = math.nan,
        then: float = math.nan,
    ) -> Reading:
        """Return a reading whose estimates are infinite, to be filled in later."""
        kind, spent, budget = read_guarantee(self.model)
        return Reading(
            request=len(self.history) + 1,
            n_people=n_people,
            n_rows=n_rows,
            since_retrain=self._interval.n_people,
            rows_left=self._n_rows(),
            n_test=len(self._panel),
            metric=now,
            metric_retrained=then,
            seconds=seconds,
            proxies=dict.fromkeys(self.tolerances.get_watched(), math.inf),
            guarantee=kind,
            spent=spent,
            budget=budget,
        )

    def _estimate_proxies(self, kind: str, seconds: float) -> dict[str, float]:
        """Return the upper estimates of the properties, and the efficiency if it is known."""
        # A model that is no longer exact was not rehearsed, so it has no bound.
        proxies = dict.fromkeys(self.tolerances.get_watched(), 0.0 if kind == "exact" else math.inf)
        if kind != "exact":
            peaks = self._interval.peaks
            proxies |= {name: limit.estimate(peaks[name]) for name, limit in self.limits.items()}
        timed = self._interval.retrain_seconds
        if timed is not None and seconds > 0:
            proxies["efficiency"] = (
                timed * self._n_rows() / self._interval.tally.rows_then / seconds
            )
        return proxies

    def _replace_model(
        self, model: Any, panel: Panel, truth: Mapping[str, float], seconds: float | None
    ) -> None:
        """Replace the model with a retrained one; raise a factor if a true value was higher."""
        for name, limit in self.limits.items():
            if name in truth and name in self._interval.peaks:
                self.limits[name] = limit.raise_factor(truth[name], self._interval.peaks[name])
        self._panel, self.model, self._forgotten = panel, model, None
        self._interval = self._new_interval(seconds)
        self.n_retrains += 1

    def _record_retrain(self, truth: dict[str, float], seconds: float | None) -> None:
        """Record in the last reading, if any, that the model was retrained."""
        if len(self.history):
            last = replace(self.history[-1], retrained=True, retrain_seconds=seconds, truth=truth)
            self.history = self.history[:-1].with_reading(last)

    def _record_removal(self, n_people: int, n_rows: int, seconds: float | None) -> None:
        """Add the reading for people whom a retrain removed; the model was not trained on them."""
        metrics: tuple[float, ...] = ()
        with contextlib.suppress(Exception):
            metrics = self._panel.compare_models(self.model)[:2]
        reading = replace(
            self._new_reading(n_people, n_rows, seconds or 0.0, *metrics),
            proxies=dict.fromkeys(self.tolerances.get_watched(), 0.0),
            decision="retrain",
            reasons=("retrained without them",),
            retrained=True,
            retrain_seconds=seconds,
        )
        self.history = self.history.with_reading(reading)

    def _recalibrate(self, n_people: int) -> None:
        """Recalibrate certifiability by a rehearsal that removes `n_people` remaining people."""
        rows, name, calibration = self._rows, "certifiability", self.calibration
        if rows is None or calibration is None or not self._is_refreshed or n_people == 0:
            return
        self.limits[name] = _calibrate.refresh_limit(
            self.limits[name],
            calibration,
            StreamStart(_panel.copy_in_memory(self.model, rows), self._panel, rows),
            self.tolerances.get_watched()[name],
            number=self.n_retrains,
            seed=self._seed,
            n_removed=min(n_people, calibration.n_removed(self._interval.people_then)),
        )

    def _commit(self) -> None:
        """Write everything to the folder, if there is one, atomically."""
        if self._folder is None:
            return
        rows = {"test": self._panel.rows, "training": self._rows, "forgotten": self._forgotten}
        parts = {"model": state.encode(self.model), "rows": state.encode(rows)}
        try:
            resisting = self._folder.commit(parts, make_record(self))
        except CheckpointError:
            raise
        except OSError as error:
            raise CheckpointError(f"cannot write to {self._folder.path}: {error}") from error
        _store.warn_about_files(resisting)
