"""Settings and rows of a boosted model in the C++ core: fit, changes, predictions and files."""

import threading
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from letheon import _core
from letheon.data import CategoryColumns, CategoryTable, EncodedRows, Ids, IntIds, TextIds
from letheon.forest import (
    ClassBalance,
    ForestBatch,
    LabelTable,
    StoredRows,
    WeightSettings,
    are_classes,
    core_arguments,
    ids_of,
    read_balance,
    read_categories,
    resolve_max_features,
    threads_for,
    weigh_classes,
    y_exponent_of,
)
from letheon.guarantee import Guarantee
from letheon.predictor import Answers, ScorePredictor, TreeInputs, TreeScores
from letheon.seeds import Purpose, keyed_hash_ints
from letheon.terminal import poll_bar

# Units of the core: rates are in 1024ths, the regularization in 2^-15.
_RATE_UNIT = 1024
_L2_UNIT = 2**15
# The smallest tree is one leaf: a byte, two sums and a value.
_LEAF_BYTES = 21
# Bounds of the core.
_MOST_L2 = 2**58
_MOST_ROWS = 2**31 - 1
_FEW_COLUMNS = 32  # a tree uses so many columns at least if colsample is None
_PILOT_RATE = 307  # of the chains: lower rates do not make better splits

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BoostingSettings(WeightSettings):
    """All settings that determine a boosted model, resolved for a number of columns."""

    loss: str
    n_columns: int
    n_rounds: int
    max_leaves: int
    rate: int
    pilot_rate: int
    l2: int
    step_bits: int
    n_chains: int
    chain_people: int
    max_bins: int
    min_samples_leaf: int
    tree_columns: int
    y_exponent: int | None
    categorical: tuple[int, ...]
    seed: int
    weight_bits: int = 0
    class_weight: Any = None

    @property
    def is_regression(self) -> bool:
        """Whether the targets are numbers and not classes."""
        return self.loss != "log_loss"

    def core_spec(self) -> _core.BoostingSpec:
        """Return the settings of the C++ core."""
        marks = np.zeros(self.n_columns, np.uint8)
        marks[list(self.categorical)] = 1
        key = keyed_hash_ints(self.seed, Purpose.BOOSTING, np.zeros(1, np.int64))
        names = "n_columns n_rounds max_leaves rate pilot_rate step_bits n_chains chain_people"
        names += " max_bins tree_columns y_exponent loss"
        return _core.BoostingSpec(
            **{name: getattr(self, name) for name in names.split()},
            l2=min(self.l2 * self.weight_step, _MOST_L2),
            min_samples_leaf=min(self.min_samples_leaf * self.weight_step, _MOST_ROWS),
            key=int(key[0]),
            is_categorical=marks if self.categorical else None,
        )


def resolve_settings(model: Any, n_columns: int, columns: CategoryColumns) -> BoostingSettings:
    """Return the checked parameters of an estimator for rows with `n_columns` columns."""
    n_rounds = int(model.n_estimators)
    n_chains = min(int(model.n_chains), n_rounds)
    skeleton = model.skeleton_people
    # 0: the core derives it from the number of people.
    people = 0 if skeleton is None else max(1, int(skeleton) // n_chains)
    return BoostingSettings(
        loss=str(model.loss),
        n_columns=n_columns,
        n_rounds=n_rounds,
        max_leaves=int(model.max_leaves),
        rate=max(1, round(model.learning_rate * _RATE_UNIT)),
        pilot_rate=_PILOT_RATE,
        l2=round(model.l2_regularization * _L2_UNIT),
        step_bits=int(model.step_bits),
        n_chains=n_chains,
        chain_people=people,
        max_bins=int(model.max_bins),
        min_samples_leaf=int(model.min_samples_leaf),
        tree_columns=_count_tree_columns(model.colsample, n_columns),
        y_exponent=y_exponent_of(getattr(model, "y_max", None)),
        categorical=columns.columns,
        seed=columns.seed,
        weight_bits=int(model.weight_bits),
        class_weight=getattr(model, "class_weight", None),
    )


def _count_tree_columns(colsample: float | None, n_columns: int) -> int:
    """Return how many columns a tree may use."""
    if colsample is None:
        return min(n_columns, max(_FEW_COLUMNS, n_columns // 4))
    return resolve_max_features(float(colsample), n_columns)


@dataclass(frozen=True)
class BoostingCost:
    """Cost of forgetting some ids, computed without changing the model.

    Attributes
    ----------
    chains : int
        Number of chains that would be grown again.
    trees : int
        Number of their trees.
    rounds : int
        Number of rounds whose leaf values would be computed again.
    share : float
        Estimated cost as a share of a fit; 1.0 is the cost of retraining.

    Examples
    --------
    >>> from letheon import BoostingClassifier
    >>> X, y = [[float(i)] for i in range(20)], [int(i > 9) for i in range(20)]
    >>> model = BoostingClassifier(random_state=0).fit(X, y)
    >>> cost = model.forget_cost([0])
    >>> 0 <= cost.share
    True
    """

    chains: int
    trees: int
    rounds: int
    share: float


def make_cost(report: _core.BoostingReport, settings: BoostingSettings) -> BoostingCost:
    """Return what the report of a change means; growth and values each take about half of a fit."""
    share = (report.chains / settings.n_chains + report.rounds / settings.n_rounds) / 2
    return BoostingCost(report.chains, report.trees, report.rounds, min(1.0, share))


class BoostingScores(NamedTuple):
    """Scores of rows, one column per output, and the table of labels of the same state."""

    table: LabelTable | None
    values: Floats


def make_answers(loss: str, classes: NDArray[Any] | None) -> Answers:
    """Return what the scores of a boosted model mean."""
    if classes is not None:
        return Answers("logits", classes)
    return Answers("log-values" if loss == "poisson" else "values")


class BoostingModel(StoredRows):
    """Rows and trees of a boosted model, stored in the C++ core."""

    settings: BoostingSettings
    core: _core.Boosting

    def __init__(
        self,
        settings: BoostingSettings,
        core: _core.Boosting,
        id_type: type[Ids],
        table: LabelTable | None,
        categories: CategoryTable,
        balance: ClassBalance | None,
    ) -> None:
        self.settings = settings
        self.balance = balance
        self.categories = categories
        self.core = core
        self.id_type = id_type
        self.table = table
        self.changing = False
        self._lock = threading.RLock()

    @classmethod
    def fit(
        cls,
        settings: BoostingSettings,
        batch: ForestBatch,
        columns: CategoryColumns,
        n_threads: int,
        *,
        is_shown: bool = False,
    ) -> Self:
        """Grow all trees and return the model."""
        table, target = None, batch.target
        if not settings.is_regression:
            table, target = LabelTable.from_labels(target)
        batch, balance = weigh_classes(settings, batch, table, target)
        core = _core.Boosting(settings.core_spec())
        arguments = _core_rows(settings, batch, target, table)
        # Every round counts when its trees are grown and when their leaves have values.
        with poll_bar("rounds", 2 * settings.n_rounds, lambda: core.n_done, is_shown=is_shown):
            core.fit(**arguments, n_threads=n_threads)
        categories = CategoryTable(columns)
        categories.add_rows(EncodedRows(batch.X, batch.names))
        return cls(settings, core, type(batch.ids), table, categories, balance)

    def forget(
        self, slots: NDArray[np.uint32], eager: bool, n_threads: int
    ) -> _core.BoostingReport:
        """Remove rows and labels without remaining rows; return the report of the core."""
        with self._lock:
            leaving, balance = self._read_leaving(slots)
            self.changing = True
            try:
                with self._reweighing(balance):
                    report = self.core.forget(slots, eager, n_threads)
                self.balance = balance
                self.categories.remove_counts(leaving)
                if report.emptied and self.table is not None:
                    self.table = self.table.without_empty(self.core.class_counts())
            finally:
                self.changing = False
        return report

    def learn(self, batch: ForestBatch, eager: bool, n_threads: int) -> _core.BoostingReport:
        """Add rows; return the report of the core."""
        with self._lock:
            table, target = self.table, batch.target
            if table is not None:
                table, target = table.add_labels(target)
            balance = self._move_balance(target, 1, table)
            arriving = self.categories.count_values(batch.X)
            if balance is not None:
                batch = replace(batch, weights=balance.weigh(batch.weights, target))
            arguments = _core_rows(self.settings, batch, target, table)
            self.changing = True
            try:
                with self._reweighing(balance):
                    report = self.core.learn(**arguments, eager=eager, n_threads=n_threads)
                self.table, self.balance = table, balance
                self.categories.add_counts(arriving, batch.names)
            finally:
                self.changing = False
        return report

    def predict(self, X: Any, n_rounds: int, n_threads: int) -> BoostingScores:
        """Return the scores after some rounds with the label table of the same state."""
        core = self.core
        return BoostingScores(
            *self._predict_state(X, lambda rows: core.predict(rows, n_rounds, n_threads))
        )

    def make_predictor(self, inputs: TreeInputs, claim: Guarantee) -> ScorePredictor:
        """Return the predictor of this state."""
        with self._lock:
            scale = self.core.scale()
            n_scores = len(scale["base"])
            trees = [self.core.tree(t) for t in range(self.settings.n_rounds * n_scores)]
            names = self.categories.names_by_column()
            classes = None if self.table is None else self.table.classes.copy()
        for tree in trees:
            tree["weight"] = tree["hessian"]
            tree["value"] = np.ldexp(tree["value"], self.settings.step_bits)
        inputs, scores = TreeScores.from_trees(
            trees,
            names,
            inputs,
            base=scale["base"].astype(np.float64),
            exponent=scale["exponent"],
            offset=scale["offset"],
        )
        return ScorePredictor(inputs, scores, make_answers(self.settings.loss, classes), claim)

    def _to_state(self) -> dict[str, Any]:
        with self._lock:
            trees = self.core.trees(threads_for(None))
            rows = self.core.rows(self.code_order)
            named = {"categories": self.categories.to_state()} if self.settings.categorical else {}
            return named | {
                "settings": self.settings,
                "classes": None if self.table is None else self.table.classes,
                "X": rows["X"],
                "target": rows["target"],
                "weights": rows["weights"],
                "ids": ids_of(rows),
                "trees": trees,
            }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        settings, classes, batch = _verify_state(state)
        table = None if classes is None else LabelTable.from_classes(classes)
        categories, balance = read_categories(state), read_balance(settings, table, batch)
        core = _core.Boosting(settings.core_spec())
        rows = _core_rows(settings, batch, batch.target, table)
        core.restore(**rows, trees=state["trees"], n_threads=threads_for(None))
        if table is not None and not core.class_counts().all():
            raise ValueError("classes contains a class without rows")
        return cls(settings, core, type(batch.ids), table, categories, balance)

    @classmethod
    def _native_cost(cls, state: dict[str, Any]) -> tuple[int, int]:
        """Return how many bytes and steps `_from_state` takes in the core, from counts alone."""
        settings, classes, batch = _verify_state(state)
        return _core.boosting_restore_cost(
            n_rounds=settings.n_rounds,
            n_rows=len(batch.X),
            n_columns=settings.n_columns,
            n_classes=0 if classes is None else len(classes),
            text_bytes=batch.ids.blob.nbytes if isinstance(batch.ids, TextIds) else 0,
        )


def _core_rows(
    settings: BoostingSettings, batch: ForestBatch, target: NDArray[Any], table: LabelTable | None
) -> dict[str, Any]:
    order = np.empty(0, np.uint32) if table is None else table.code_order
    return core_arguments(settings.seed, batch, target, table) | {"order": order}


def _verify_state(state: dict[str, Any]) -> tuple[BoostingSettings, Any, ForestBatch]:
    """Return the parts of a state; raise `ValueError` if they do not match."""
    settings, classes, trees = state["settings"], state["classes"], state["trees"]
    batch = ForestBatch(state["X"], state["target"], state["weights"], state["ids"])
    X = batch.X
    if not isinstance(settings, BoostingSettings) or not isinstance(batch.ids, IntIds | TextIds):
        raise ValueError("settings is not a BoostingSettings, or ids is not IntIds or TextIds")
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.shape[1] != settings.n_columns:
        raise ValueError(
            f"X is not a matrix with {settings.n_columns} columns, as the settings state"
        )
    n_outputs = len(classes) if isinstance(classes, np.ndarray) and classes.size > 2 else 1
    n_bytes = settings.n_rounds * n_outputs * _LEAF_BYTES
    if not isinstance(trees, np.ndarray) or n_bytes > trees.size:
        raise ValueError("the state contains fewer trees than its settings require")
    if settings.is_regression != (classes is None):
        raise ValueError("classes must be None for regression, and an array for classification")
    if classes is not None and not are_classes(classes):
        raise ValueError("classes must be an array of distinct labels of one type, in sorted order")
    if any(not 0 <= column < settings.n_columns for column in settings.categorical):
        raise ValueError("a categorical column of the settings is not in X")
    return settings, classes, batch
