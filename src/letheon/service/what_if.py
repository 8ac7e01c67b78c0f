"""Estimate the cost and the guarantee of a batch with each method, before the batch runs.

Every method that suits the task is trained on the rows of the model. It then forgets as many people
as the batch contains, with the same function that the worker calls. These people are drawn at
random, not taken from the queue. If the data set is large, a sample of its people is used. Times
and sizes are then multiplied by ``rows / rows of the sample`` and marked *extrapolated*.

The speed-up of a method is the time to retrain the current model on the remaining rows, divided by
the time of the method. If each method were compared with its own retrain, a method that trains
slowly would seem fast.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_regressor

from letheon import state
from letheon.data import Rows
from letheon.guarantee import Task
from letheon.ledger.certificates.claims import make_published_account
from letheon.ledger.certificates.explanations import explain_guarantee
from letheon.ledger.models.examine import fresh_fit
from letheon.ledger.worker.compute import Computation, ComputationFailed, compute

RETRAIN = "retrain"
SAMPLE_ROWS = 4000
_SEED = 0
_UNSEEDED = {"rule": "caller-seed-v1", "beacon": "none", "keyCommitment": "none"}
# The first of several short runs is slower, so short runs are repeated.
_SHORT, _REPEATS = 0.5, 2
_CLAIMS = ("kind", "epsilon", "delta", "requests", "releases")
_BASES = ("measured", "extrapolated")


@dataclass(frozen=True)
class WhatIfOrder:
    """The input of the measuring process: a model, its rows, and the number of people to remove.

    `done` lists the names of methods to skip. `baseline` is the time of a retrain in seconds, None
    if it has not been measured yet.
    """

    model: bytes
    rows: bytes
    trusted: tuple[str, ...]
    people: int
    settle: bool = True
    done: tuple[str, ...] = ()
    baseline: float | None = None
    sample_rows: int = SAMPLE_ROWS


@dataclass(frozen=True)
class _SharedInputs:
    """The inputs that are the same for all methods."""

    order: WhatIfOrder
    present: Any
    rows: Rows
    removed_ids: NDArray[Any]
    scale: float

    def make_job(self, model: bytes, kind: Any, trusted: tuple[str, ...]) -> Computation:
        return Computation(
            kind=kind,
            model=model,
            rows=state.encode(self.rows),
            ids=self.removed_ids,
            trusted=trusted,
            judged=None,
            training=_UNSEEDED,
            since_retrain=0,
            retrain_seconds_per_row=None,
            settle=self.order.settle,
        )


@dataclass(frozen=True)
class _Method:
    """A method to measure, or the reason why it cannot be measured."""

    method: str
    name: str
    estimator: Any
    is_current: bool = False
    why_not: str = ""
    kind: str = "erase"


def measure_methods(order: WhatIfOrder, report: Callable[[Any], None]) -> None:
    """Measure every method, and pass messages to `report`.

    The first message contains the sizes. Then there are two messages for each method: one when it
    begins, and one with its row of results.
    """
    inputs, baseline = _prepare_inputs(order), order.baseline
    n_sample = len(inputs.rows)
    sizes = {"rows_held": round(n_sample * inputs.scale), "sample_rows": n_sample}
    report({"sizes": {**sizes, "people": order.people, "sample_people": len(inputs.removed_ids)}})
    for method in _iterate_methods(inputs.present, inputs.rows.X):
        if method.name in order.done:
            continue
        report({"begin": method.name, "method": method.method, "is_current": method.is_current})
        row = _measure_row(inputs, method, baseline)
        if method.method == RETRAIN:
            baseline = row["seconds"]
        report({"row": row})


def _prepare_inputs(order: WhatIfOrder) -> _SharedInputs:
    present = state.decode(order.model, trusted=order.trusted, max_memory=state.UNLIMITED)
    rows: Rows = state.decode(order.rows, max_memory=state.UNLIMITED)
    people = rows.ids.distinct()
    drawn = people.take(np.random.default_rng(_SEED).permutation(len(people)))
    share = min(1.0, order.sample_rows / len(rows))
    sampled = drawn.take(np.arange(min(len(people), max(2, round(share * len(people))))))
    part = rows if share == 1.0 else rows.take(np.sort(rows.find(sampled).positions))
    scale = len(rows) / len(part)
    n_removed = max(1, min(round(order.people / scale), len(sampled) // 2))
    return _SharedInputs(order, present, part, sampled.take(np.arange(n_removed)).to_array(), scale)


def _iterate_methods(present: Any, X: Any) -> Iterator[_Method]:
    """Yield a retrain, the current method, and then all other methods of letheon.

    For a table with categories or missing values, the others are pipelines.
    """
    from letheon.select import Need, default_candidates, short_name
    from letheon.table_pipeline import make_table_pipeline, needs_pipeline

    yield _Method(RETRAIN, "retrain", present, kind="retrain")
    yield _Method(present.facts.method, short_name(present), present, is_current=True)
    task: Task = "regression" if is_regressor(present) else "classification"
    need = Need(task=task)
    is_mixed = needs_pipeline(X)
    named, _ = default_candidates(need, task, _choose_inner_estimator(present, task, X, is_mixed))
    steps = getattr(present, "steps_", None)
    current = present if steps is None else steps[-1][1]
    for name, candidate in named.items():
        method, estimator = candidate.facts.method, candidate.estimator
        if method != current.facts.method:
            why_not = need.why_not(estimator, candidate.facts)
            if is_mixed and method != "sisa":
                estimator = make_table_pipeline(estimator, X)
            yield _Method(method, name, estimator, why_not=why_not)


def _choose_inner_estimator(present: Any, task: Task, X: Any, is_mixed: bool) -> Any:
    """Return the estimator that SISA wraps.

    It is the estimator inside the current model if there is one, a forest if the table has
    categories or missing values, or a linear model.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    inner = present.get_params(deep=False).get("estimator")
    if inner is not None:
        return inner
    if is_mixed:
        from letheon.evaluation import usual_models

        (forest,) = usual_models(X, is_regression=task == "regression", seed=0, family="forest")
        return forest
    linear = Ridge() if task == "regression" else LogisticRegression(max_iter=1000)
    return make_pipeline(StandardScaler(), linear)


def _measure_row(inputs: _SharedInputs, method: _Method, baseline: float | None) -> dict[str, Any]:
    why_not = method.why_not
    try:
        if not why_not:
            seconds, size, facts = _run_method(inputs, method)
    except ComputationFailed as failure:
        why_not = f"the method could not forget these people: {failure}"
    except Exception as error:  # noqa: BLE001  (its text may quote rows)
        why_not = f"the method does not support these rows: {type(error).__name__}"
    if why_not:
        return row_not_run(method.method, method.name, why_not, is_current=method.is_current)
    against = seconds if method.method == RETRAIN else baseline
    return {
        "method": method.method,
        "name": method.name,
        "is_current": method.is_current,
        "seconds": round_figure(seconds),
        "speedup": round_figure(against / seconds if against else None),
        "basis": _BASES[inputs.scale > 1.0],
        "storage_bytes": round(size * inputs.scale),
        "note": _describe_method(inputs.present, method),
        **_extract_claims(facts["guarantee"]),
    }


def _run_method(inputs: _SharedInputs, method: _Method) -> tuple[float, int, dict[str, Any]]:
    """Train a method and run the batch.

    Return the seconds of the batch, the size of the model in bytes, and facts with the guarantee.
    """
    with warnings.catch_warnings():
        # The guarantee already states what these warnings say.
        warnings.simplefilter("ignore")
        job = inputs.make_job(_train_method(inputs, method), method.kind, inputs.order.trusted)
        product = compute(job)
        seconds = product.seconds
        for _ in range(_REPEATS if seconds < _SHORT else 0):
            seconds = min(seconds, compute(job).seconds)
    return max(seconds * inputs.scale, 1e-6), len(product.model), product.facts


def _train_method(inputs: _SharedInputs, method: _Method) -> bytes:
    """Return the saved model that the batch is applied to.

    It is the current model for a retrain, and for the current method if the rows are not sampled.
    Otherwise the method is trained on the rows.
    """
    if method.kind == "retrain" or (method.is_current and inputs.scale == 1.0):
        return inputs.order.model
    seed = None if method.is_current else _SEED
    return state.encode(fresh_fit(method.estimator, inputs.rows, seed=seed).model)


def _describe_method(present: Any, method: _Method) -> str:
    if method.method == RETRAIN:
        return "the current model, retrained on the remaining rows"
    if method.is_current:
        return "the current method"
    families = set(method.estimator.facts.families) - {"any"}
    mine = set(present.facts.families) - {"any"}
    if not families or families & mine:
        return "with default settings"
    return f"another kind of model ({', '.join(sorted(families))}), with default settings"


def row_not_run(method: str, name: str, note: str, *, is_current: bool = False) -> dict[str, Any]:
    """Return the row of a method that has no result; `note` says why."""
    facts = {"method": method, "name": name, "is_current": is_current, "note": note[:300]}
    empty = ("seconds", "speedup", "storage_bytes", *_CLAIMS, "guarantee")
    return {**facts, "basis": "not-run", **dict.fromkeys(empty)}


def _extract_claims(guarantee: Mapping[str, Any]) -> dict[str, Any]:
    shown = {**guarantee, "accounting": make_published_account(guarantee["accounting"])}
    return {name: shown.get(name) for name in _CLAIMS} | {"guarantee": explain_guarantee(shown)}


def round_figure(value: float | None) -> float | None:
    """Round a number to three significant digits; None stays None."""
    return None if value is None else float(f"{value:.3g}")
