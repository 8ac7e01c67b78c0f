"""Chains of steps that pass changes on.

A chain of such steps is a step again, so pipelines and column transformers can contain each other.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from letheon.delta import (
    Block,
    Delta,
    ReplacedRows,
    RowSource,
    StepPlan,
    Table,
    View,
    ask_names,
    prepare_step,
)


class ChainPlan(NamedTuple):
    """Plans of the steps of a chain, in order."""

    plans: tuple[StepPlan, ...]

    @property
    def published(self) -> tuple[Any, ...]:
        """Published values of all steps after the commit."""
        return tuple(plan.published for plan in self.plans)

    @property
    def work(self) -> float:
        """The largest share of a fresh fit that a step repeats."""
        return max((plan.work for plan in self.plans), default=0.0)

    @property
    def rebuilt(self) -> dict[str, int]:
        """Numbers of rebuilt parts of all steps."""
        return sum_counts([plan.rebuilt for plan in self.plans])


def sum_counts(counts: Sequence[Any]) -> dict[str, int]:
    """Return the sums of several mappings of names to numbers."""
    total: dict[str, int] = {}
    for part in counts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total


def fit_chain(steps: Sequence[Any], source: RowSource) -> RowSource:
    """Fit steps in order; return the source of the rows behind the last one."""
    for step in steps:
        step._fit_source(source)
        source = source.through(partial(_transform_block, step, step.published_))
    return source


def name_outputs(
    steps: Sequence[Any], published: Sequence[Any], names: list[str] | None
) -> list[str] | None:
    """Return the names of the columns that a chain with these published values returns, or None."""
    for step, values in zip(steps, published, strict=True):
        if names is None:
            return None
        if hasattr(step, "_name_outputs"):
            names = step._name_outputs(values, names)
            continue
        preview = object.__new__(type(step))
        vars(preview).update(vars(step) | {"published_": values, "n_features_in_": len(names)})
        vars(preview).pop("feature_names_in_", None)
        names = ask_names(preview, names)
    return names


def prepare_chain(steps: Sequence[Any], delta: Delta) -> tuple[ChainPlan, Delta]:
    """Return what a change does in every step of a chain, and to its output. Changes nothing."""
    plans = []
    for step in steps:
        plan = prepare_step(step, delta)
        plans.append(plan)
        delta = pass_on(step, plan, delta)
    return ChainPlan(tuple(plans)), delta


def prepare_leaving(steps: Sequence[Any], row: Block) -> ChainPlan | None:
    """Return the plan of a chain if one row leaves and all published values stay, else None."""
    plans = []
    for step in steps:
        plan = step._prepare_leaving(row)
        if plan is None:
            return None
        plans.append(plan)
        row = row.through(partial(_transform_block, step, plan.published))
    return ChainPlan(tuple(plans))


def pass_on(step: Any, plan: StepPlan, delta: Delta) -> Delta:
    """Return the change of the output of a step, which is the input of the next one."""
    old, new = step.published_, plan.published
    old_view: View = partial(_transform_block, step, old)
    new_view: View = partial(_transform_block, step, new)
    before = delta.before.through(old_view)
    is_same = old is new and delta.before is delta.source
    source = before if is_same else delta.source.through(new_view)
    parts = [plan.rows, None if delta.replaced is None else delta.replaced.ranks]
    ranks = [part for part in parts if part is not None and len(part)]
    replaced = None
    if ranks:
        changed = np.unique(np.concatenate(ranks))
        replaced = ReplacedRows(changed, before.take(changed), source.take(changed))
    return Delta(
        removed=None if delta.removed is None else delta.removed.through(old_view),
        added=None if delta.added is None else delta.added.through(new_view),
        replaced=replaced,
        columns=plan.columns,
        layout=plan.layout,
        before=before,
        source=source,
        find_rows=plan.find_rows,
    )


def _transform_block(step: Any, published: Any, block: Block) -> Table:
    return step._transform_training(published, block)


def apply_chain(steps: Sequence[Any], plans: Sequence[StepPlan]) -> None:
    """Apply the plans of a chain. Cannot fail."""
    for step, plan in zip(steps, plans, strict=True):
        step._apply_plan(plan)


class ChainStepMixin:
    """Mixin for an estimator that is a chain of steps, and itself a step that passes changes on."""

    def _inner_steps(self) -> list[Any]:
        """Return the fitted steps, with the methods of `StableTransformer`."""
        raise NotImplementedError(f"{type(self).__name__} must return its steps")

    @property
    def published_(self) -> tuple[Any, ...]:
        """Published values of all steps."""
        return tuple(step.published_ for step in self._inner_steps())

    def _transform_with(self, published: Any, X: Table) -> Table:
        for step, values in zip(self._inner_steps(), published, strict=True):
            X = step._transform_with(values, X)
        return X

    def _transform_training(self, published: Any, block: Block) -> Table:
        for step, values in zip(self._inner_steps(), published, strict=True):
            block = block.with_table(step._transform_training(values, block))
        return block.X

    def _name_outputs(self, published: Any, names: list[str]) -> list[str] | None:
        return name_outputs(self._inner_steps(), published, names)

    def _prepare_leaving(self, row: Block) -> StepPlan | None:
        steps = self._inner_steps()
        chain = prepare_leaving(steps, row)
        if chain is None:
            return None
        return StepPlan(published=chain.published, apply=partial(apply_chain, steps, chain.plans))

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        steps = self._inner_steps()
        chain, output = prepare_chain(steps, delta)
        return StepPlan(
            published=keep_if_same(self.published_, chain.published),
            apply=lambda: apply_chain(steps, chain.plans),
            columns=output.columns,
            layout=output.layout,
            rows=None if output.replaced is None else output.replaced.ranks,
            find_rows=output.find_rows,
            work=chain.work,
            rebuilt=chain.rebuilt,
        )

    def _apply_plan(self, plan: StepPlan) -> None:
        plan.apply()


def keep_if_same(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `old` if all of its elements are the same objects in `new`."""
    return old if all(a is b for a, b in zip(old, new, strict=True)) else new
