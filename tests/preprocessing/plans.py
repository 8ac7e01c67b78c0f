"""Plans of steps: what they report as changed, and how often."""

from typing import Any

import numpy as np
from sklearn.base import clone

from letheon.data import to_native
from letheon.delta import Delta, RowSource, StepPlan, take_block
from tests.preprocessing.tables import take


def prepare_removal(model: Any, slots: list[int]) -> StepPlan:
    """Return the plan of a step of a pipeline for the removal of some rows."""
    where = np.array(slots)
    source = RowSource(model.rows_, where)
    delta = Delta(removed=take_block(model.rows_, where), before=source, source=source)
    plan: StepPlan = model._prepare_delta(delta)
    return plan


def to_dense(X: Any) -> Any:
    """Return an output as an array."""
    X = to_native(X)
    if hasattr(X, "toarray"):
        return X.toarray()
    return X.to_numpy(object) if hasattr(X, "to_numpy") else X


def check_plan(estimator: Any, X: Any, y: Any, gone: list[int]) -> StepPlan:
    """Check that everything a plan does not report as changed is the same in a fresh fit."""
    model = clone(estimator).set_params(random_state=7).fit(X, y)
    stay = [row for row in range(len(X)) if row not in gone]
    plan = prepare_removal(model, gone)
    target = None if y is None else y[stay]
    ids = np.arange(len(X))[stay]
    fresh = clone(estimator).set_params(random_state=7).fit(take(X, stay), target, ids=ids)
    rows = model.rows_
    before = to_dense(model._transform_training(model.published_, take_block(rows, np.array(stay))))
    block = take_block(fresh.rows_, slice(0, len(stay)))
    after = to_dense(fresh._transform_training(fresh.published_, block))
    layout = np.arange(after.shape[1]) if plan.layout is None else plan.layout
    assert len(layout) == after.shape[1]
    same = [j for j in range(len(layout)) if layout[j] >= 0 and j not in plan.columns]
    others = np.setdiff1d(np.arange(len(stay)), () if plan.rows is None else plan.rows)
    np.testing.assert_array_equal(after[others][:, same], before[others][:, layout[same]])
    if plan.published is model.published_:
        np.testing.assert_array_equal(after, before)
    return plan
