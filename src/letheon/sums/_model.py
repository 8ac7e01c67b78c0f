"""Base class of models made of exact sums."""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from letheon.base import lock_model
from letheon.data import Frame, hold_labels, numbers_of
from letheon.delta import Block, Delta, DeltaMixin, RowSource, StepPlan
from letheon.guarantee import Guarantee, MethodFacts
from letheon.parallel import one_thread
from letheon.predictor import Answers, NumberInputs, Predictor, ScorePredictor, normalise_logs
from letheon.removal import Cache
from letheon.sums._table_sums import Grid, Role, RowPart, TableSums, count_labels, split_block
from letheon.validation import Rules

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Signed = list[tuple[int, RowPart]]


def make_facts(*tasks: Any) -> MethodFacts:
    """Return the facts of a model made of sums."""
    return MethodFacts(
        method="sums",
        applicability="linear models, discriminants, naive Bayes and PCA",
        exact=True,
        strength="strong",
        definition_name="sums",
        families=("linear",),
        tasks=tasks,
        batches=True,
        replay="bitwise",
    )


def read_solution(name: str, doc: str) -> Any:
    """Return a property that reads a field of the solution of a `SumsModel`."""
    return property(lambda model: getattr(model._get_solution(), name), doc=doc)


def make_predictor(model: Any, scores: Any, kind: str, claim: Guarantee) -> Predictor:
    """Return the predictor of a model whose rows are numbers."""
    names, classes = vars(model).get("feature_names_in_"), getattr(model, "classes_", None)
    inputs = NumberInputs(
        int(model.n_features_in_),
        None if names is None else tuple(map(str, names)),
        model.__sklearn_tags__().input_tags.sparse,
    )
    answers = Answers(kind, None if classes is None else np.array(classes))
    return ScorePredictor(inputs, scores, answers, claim)


class SumsModel(DeltaMixin, BaseEstimator):
    """Base class: exact sums of all rows, and a solution that is computed when it is needed.

    A subclass sets `_role` and implements `_solve`, a function of the sums and the grid. The
    solution is not part of digests and files.
    """

    _role: ClassVar[Role] = "none"
    _accepts_sparse: ClassVar[bool] = False
    _parameter_rules: ClassVar[Rules] = {}

    sums_: TableSums
    published_: Any
    n_features_in_: int

    def _solve(self, sums: TableSums, grid: Grid) -> Any:
        """Return the solution, computed in floating point from the integers."""
        raise NotImplementedError(f"{type(self).__name__} must solve its model")

    def _check_size(self, n_rows: int, n_features: int, class_rows: Ints) -> None:
        """Raise ValueError if the rows are too few for this model."""

    def _get_solution(self) -> Any:
        check_is_fitted(self)
        cache: Cache[Any] = vars(self)["solution_"]
        content = cache.content
        if content is None:
            with lock_model(self):
                # A change may have replaced the cache while this thread waited.
                cache = vars(self)["solution_"]
                content = cache.content
                if content is None:
                    with one_thread():  # the solution must not depend on the number of threads
                        content = self._solve(self.sums_, self._get_grid())
                    cache.content = content
        return content

    def _get_grid(self) -> Grid:
        grid: Grid = self.published_
        return grid

    def _make_scores(self, solution: Any) -> tuple[Any, str]:
        """Return the scores of a predictor (see `ScorePredictor`) and what they mean."""
        raise NotImplementedError(f"{type(self).__name__} must make its scores")

    def _make_predictor(self, claim: Guarantee) -> Predictor:
        scores, kind = self._make_scores(self._get_solution())
        return make_predictor(self, scores, kind, claim)

    def _after_change(self) -> None:
        self.solution_ = Cache[Any]()

    def _finish_pending(self) -> None:
        self._get_solution()

    @property
    def n_clipped_(self) -> Ints:
        """Number of values of each feature beyond the range of the grid; they are clipped."""
        check_is_fitted(self)
        return self.sums_.n_clipped

    def _convert_table(self, X: Any, *, copy: bool) -> Any:
        if isinstance(X, Frame):
            X = numbers_of(X)
        accepted = "csr" if self._accepts_sparse else False
        table = check_array(
            X,
            accept_sparse=accepted,
            dtype=np.float64,
            order="C",
            copy=copy,
            estimator=self,
            input_name="X",
        )
        if sp.issparse(table):
            table = sp.csr_array(table)
            table.sum_duplicates()
            return table
        return table + 0.0 if not copy else np.add(table, 0.0, out=table)  # -0.0 becomes 0.0

    def _convert_rows(self, X: Any, y: Any, ids: Any, weights: Any) -> Block:
        weights = None if weights is None else np.array(weights, np.float64)
        return super()._convert_rows(X, y, ids, weights)

    def _convert_new_rows(self, X: Any) -> Any:
        """Return rows to predict, checked against the columns of the fit."""
        check_is_fitted(self)
        rows = self._convert_table(X, copy=False)
        if not isinstance(X, Frame):
            validate_data(self, X, skip_check_array=True, reset=False)
        return rows

    def _count(self, source: RowSource, seed: int) -> tuple[TableSums, Any]:
        sums: TableSums | None = None
        labels = []
        for block in source.blocks():
            for part in split_block(block, self._role):
                sums = TableSums(self._role, part) if sums is None else sums
                sums.count_columns(part, 1)
                if part.labels is not None:
                    labels.append((1, part.labels))
        assert sums is not None
        sums.require_values()
        if labels:
            sums.classes, sums.class_rows = count_labels(labels)
        self._check_size(sums.n_rows, sums.n_features, sums.class_rows)
        grid = sums.make_grid(seed)
        sums.recount_all(source, grid)
        return sums, self._publish(sums, grid)

    def _publish(self, sums: TableSums, grid: Grid) -> Any:  # noqa: ARG002
        """Return the published values; transformers add what they transform with."""
        return grid

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        changes: Signed = [
            (sign, part)
            for sign, block in delta.iter_signed()
            for part in split_block(block, self._role)
        ]
        if not delta.columns and delta.layout is None:
            plan = self._plan_same_grid(changes)
            if plan is not None:
                return plan
        return self._plan_new_grid(delta, changes)

    def _plan_same_grid(self, changes: Signed) -> StepPlan | None:
        """Return the plan if neither the grid nor the classes change, else None."""
        sums, grid = self.sums_, self._get_grid()
        classes, class_rows = _classes_after(sums, changes)
        if classes is not sums.classes:
            return None
        with sums.preview(changes):
            sums.require_values()
            self._check_size(sums.n_rows, sums.n_features, class_rows)
            if not sums.make_grid(self.seed_).equals(grid):
                return None
        groups = [(sign, sums.slice_groups(part, grid)) for sign, part in changes]

        def apply() -> None:
            for sign, part in changes:
                sums.count_columns(part, sign)
            for sign, rows in groups:
                sums.count_products(rows, sign)
            sums.class_rows = class_rows

        n_changed = sum(part.X.shape[0] for _, part in changes)
        return StepPlan(published=grid, apply=apply, work=n_changed / max(1, sums.n_rows))

    def _plan_new_grid(self, delta: Delta, changes: Signed) -> StepPlan:
        """Return the plan for a change of columns, grid or classes; it works on a copy."""
        sums, old_grid, stale = self._change_layout(delta, changes)
        added = [part for sign, part in changes if sign > 0]
        for part in added:
            sums.count_columns(part, 1)
        grid, n_recounted = self._recount(sums, delta, added, old_grid, stale)
        sums.require_values()
        self._check_size(sums.n_rows, sums.n_features, sums.class_rows)
        work = min(1.0, n_recounted / max(1, len(stale)))
        rebuilt = {"columns": n_recounted} if n_recounted else {}
        replace_sums = self._replace_sums(sums)

        def apply() -> None:
            sums.settle()
            replace_sums()

        plan = StepPlan(published=grid, apply=apply, work=work, rebuilt=rebuilt)
        return self._make_plan(sums, grid, plan)

    def _recount(
        self,
        sums: TableSums,
        delta: Delta,
        added: list[RowPart],
        old_grid: Grid,
        stale: npt.NDArray[np.bool_],
    ) -> tuple[Grid, int]:
        """Add new rows and count stale columns again; return the grid, and how many they were.

        A feature whose values changed has no sums yet. Its grid is guessed from some rows, so that
        usually one pass counts its sums and its products.
        """
        source, uncounted = delta.source, np.flatnonzero(stale)
        if delta.find_rows is not None and len(uncounted):  # cheap: no guess is necessary
            sums.recount_columns(sums.read_parts_with(delta, uncounted), uncounted)
            uncounted = uncounted[:0]
        grid = sums.guess_grid(source, uncounted, self.seed_)
        for part in added:
            sums.count_products(sums.slice_groups(part, grid), 1)
        n_recounted = 0
        while True:
            stale = stale | grid.stale_features(old_grid)
            columns = np.flatnonzero(np.concatenate([stale, grid.stale_targets(old_grid)]))
            if grid.root_scale != old_grid.root_scale or len(columns) > len(stale) // 2:
                if len(uncounted):
                    sums.recount_columns(sums.read_parts(source), uncounted)
                grid = sums.make_grid(self.seed_)
                sums.recount_all(source, grid)
                return grid, len(stale)
            if len(columns):
                parts = sums.read_parts_with(delta, columns)
                sums.recount_products(parts, grid, columns, uncounted)
            n_recounted = max(n_recounted, len(columns))
            old_grid, grid = grid, sums.make_grid(self.seed_)
            stale, uncounted = np.zeros_like(stale), uncounted[:0]
            if grid.equals(old_grid):
                return grid, n_recounted

    def _change_layout(
        self, delta: Delta, changes: Signed
    ) -> tuple[TableSums, Grid, npt.NDArray[np.bool_]]:
        """Return the sums without the removed rows, with the new classes and features.

        Also returns the old grid of the new features, and which of them must be counted again.
        """
        grid, layout = self._get_grid(), delta.layout
        sums = self.sums_.fork()
        for sign, part in changes:
            if sign < 0:
                sums.count_columns(part, -1)
                sums.count_products(sums.slice_groups(part, grid), -1)
        classes, class_rows = _classes_after(self.sums_, changes)
        if classes is not None and classes is not self.sums_.classes:
            sums = sums.with_classes(classes, class_rows)
        sums.class_rows = class_rows
        if layout is not None:
            sums, grid = sums.with_features(layout), grid.select(layout)
        stale = np.zeros(sums.n_features, bool) if layout is None else layout < 0
        stale[list(delta.columns)] = True
        return sums, grid, stale

    def _make_plan(self, sums: TableSums, grid: Grid, plan: StepPlan) -> StepPlan:  # noqa: ARG002
        """Return the plan; a transformer adds its published values and the changes of its output.

        `sums` and `grid` are those after the change.
        """
        return plan

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(
            kind="exact",
            reference="sums of integers are independent of order and history",
            assumptions=("seed-independent-of-requests",),
        )


def _classes_after(sums: TableSums, changes: Signed) -> tuple[npt.NDArray[Any] | None, Ints]:
    """Return the classes after a change and their rows; the same array if the classes stay."""
    classes = sums.classes
    if classes is None:
        return None, sums.class_rows
    class_rows = sums.class_rows.copy()
    is_known = True
    for sign, part in changes:
        codes = np.minimum(sums.find_codes(part), len(classes) - 1)
        is_known = is_known and bool((classes[codes] == part.labels).all())
        class_rows += sign * np.bincount(codes, minlength=len(class_rows))
    if is_known and (class_rows > 0).all():
        return classes, class_rows
    before = [(int(n), classes[[k]]) for k, n in enumerate(sums.class_rows)]
    after = [(sign, part.labels) for sign, part in changes if part.labels is not None]
    return count_labels([*before, *after])


class LabelsMixin:
    """Mixin for classifiers made of sums; list it before `SumsModel`."""

    sums_: TableSums

    def _convert_target(self, y: Any) -> npt.NDArray[Any]:
        if y is None:
            raise ValueError("y is missing: requires y to be passed, but the target y is None")
        return hold_labels(y, name=type(self).__name__, regressor="letheon.sums.Ridge")

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """Labels of the remaining rows, sorted."""
        check_is_fitted(self)
        classes: npt.NDArray[Any] = np.asarray(self.sums_.classes)
        return classes


def require_classes(class_rows: Ints) -> None:
    """Raise unless there are two classes or more."""
    if len(class_rows) < 2:
        raise ValueError(
            f"y has {len(class_rows)} class; the number of classes has to be greater than one"
        )


def make_priors(priors: Any, class_weights: Floats) -> Floats:
    """Return prior probabilities: those given, else the shares of the classes."""
    if priors is None:
        shares: Floats = class_weights / class_weights.sum()
        return shares
    values: Floats = np.asarray(priors, np.float64)
    normalised: Floats = values / values.sum()
    return normalised


def check_priors(priors: Any, n_classes: int) -> None:
    """Raise for priors that are not one probability per class."""
    if priors is None:
        return
    values = np.asarray(priors, np.float64)
    if values.shape != (n_classes,):
        raise ValueError(
            f"Number of priors must match number of classes: got {values.size} for {n_classes}"
        )
    if (values < 0).any():
        raise ValueError("Priors must be non-negative.")
    if abs(values.sum() - 1.0) > 1e-8:
        raise ValueError(f"The sum of the priors should be 1, got {values.sum()}.")


class ScoresMixin:
    """Mixin for classifiers with one logarithmic score per class.

    A subclass implements `_score_classes`, which returns the labels and the scores of rows.
    """

    def _score_classes(self, X: Any) -> tuple[npt.NDArray[Any], Floats]:
        raise NotImplementedError(f"{type(self).__name__} must compute scores of classes")

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of every row."""
        classes, scores = self._score_classes(X)
        return Answers("log-joint", classes).predict(scores)

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithms of the class probabilities."""
        return normalise_logs(self._score_classes(X)[1])

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities, in the order of `classes_`."""
        classes, scores = self._score_classes(X)
        return Answers("log-joint", classes).predict_proba(scores)
