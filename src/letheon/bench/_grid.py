"""The cells (experiments) of the benchmark: data set x method x setting x people removed.

Every method has variants with both extremes of its efficiency parameters.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple

from letheon import linear, naive, sharded
from letheon.methods import METHODS as REGISTRY

Family = Literal["linear", "forest", "net"]
Kind = Literal["measure", "attack"]

DATASETS = ("adult", "mnist", "covtype", "higgs", "census", "diabetes", "cifar-2")
QUICK_DATASETS = ("breast-cancer", "digits")
# B of DeepObliviate; SISA has the same number of parts, S shards times R slices.
N_BLOCKS = 20
N_SHARDS = 5
EPSILON, DELTA = 1.0, 1e-4
# Above this number of columns L-BFGS is faster than Newton's method.
_CHOLESKY_COLUMNS = 200


@dataclass(frozen=True, kw_only=True)
class CellContext:
    """Properties of a cell that a variant depends on.

    Attributes
    ----------
    n_rows, n_columns : int
        Shape of the training rows.
    n_removed : int
        Number of people removed in one request (m in the survey).
    is_image : bool
        Whether rows are images.
    random_depths : tuple of int
        Two numbers of random levels, which cost at most 0.1 % and 1 % of a forest's accuracy.
    small : bool
        Whether models are small, for a quick run.
    device : str
        Device for training networks.
    """

    n_rows: int
    n_columns: int
    n_removed: int
    is_image: bool = False
    random_depths: tuple[int, int] = (1, 3)
    small: bool = False
    device: str = "cpu"

    @property
    def l2(self) -> float:
        """Strength of the L2 regularisation per row; larger for images."""
        return 1e-3 if self.is_image else 1e-4

    @property
    def n_trees(self) -> int:
        """Number of trees in every forest."""
        return 10 if self.small else 50


Make = Callable[[CellContext], Any]


class Variant(NamedTuple):
    """A method with one setting.

    `least` and `most` limit the number of people in a request. Some settings divide a request into
    eight parts and need at least eight people. Some methods would take hours for many people. Naive
    retraining takes the same time for any number, so one is enough.
    """

    method: str
    family: Family
    setting: str
    make: Make
    note: str = ""
    least: int = 1
    most: int | None = None
    attacked: bool = True

    def supports(self, removed: str) -> bool:
        """Return whether the variant is run with this many people; a share counts as 100 people."""
        n = 100 if removed.endswith("%") else int(removed)
        return self.least <= n and (self.most is None or n <= self.most)


def find_variant(method: str, family: Family, setting: str) -> Variant:
    """Return the variant with this method, family and setting."""
    for variant in VARIANTS:
        if variant[:3] == (method, family, setting):
            return variant
    raise ValueError(
        f"unknown variant: method {method!r}, family {family!r}, setting {setting!r}; see VARIANTS"
    )


def make_ordinary_model(family: Family, context: CellContext) -> Any:
    """Return the ordinary model of a family, without unlearning support."""
    return _ORDINARY[family](context)


def _make_logistic(context: CellContext) -> Any:
    from sklearn.linear_model import LogisticRegression

    solver = "newton-cholesky" if context.n_columns <= _CHOLESKY_COLUMNS else "lbfgs"
    return LogisticRegression(C=1.0, fit_intercept=False, solver=solver, max_iter=1_000)


def _make_random_forest(context: CellContext) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(context.n_trees, n_jobs=1, random_state=0)


def _make_naive(context: CellContext, *, inner: Make) -> Any:
    return naive.NaiveUnlearner(inner(context))


def _make_linear(context: CellContext, *, kind: Any, **settings: Any) -> Any:
    return kind(l2=context.l2, fit_intercept=False, rows="clip", row_norm=1.0, **settings)


def _make_certified(context: CellContext, *, parts: int | None = None, **settings: Any) -> Any:
    """Return a certified model that divides each request into `parts` batches, if given."""
    if parts is not None:
        settings["batch_size"] = max(1, context.n_removed // parts)
    return _make_linear(context, epsilon=EPSILON, delta=DELTA, **settings)


def _make_sisa(context: CellContext, *, n_slices: int) -> Any:
    from sklearn.linear_model import SGDClassifier

    inner = SGDClassifier(
        loss="log_loss", alpha=context.l2, fit_intercept=False, learning_rate="optimal"
    )
    return sharded.SISAClassifier(inner, n_shards=N_SHARDS, n_slices=n_slices, epochs=10)


def _make_dare(context: CellContext, *, extreme: int) -> Any:
    # Imported here: forests need the compiled core, and benchmarks of networks run without it.
    from letheon.forest import DaREForestClassifier

    return DaREForestClassifier(
        n_estimators=context.n_trees, random_depth=context.random_depths[extreme], n_jobs=1
    )


def _make_boosting(context: CellContext, *, preset: str) -> Any:
    from letheon.boosting import BoostingClassifier

    size = {"n_estimators": context.n_trees} if context.small else {}
    return BoostingClassifier.preset(preset, n_jobs=1, **size)


def _make_net(context: CellContext, *, kind: str, **settings: Any) -> Any:
    from letheon import deep

    module: Any = deep.MLP(widths=(32,))
    if context.is_image:
        module = deep.CNN(channels=(8, 16), hidden=0, pool="stride", conv="cudnn", scale=1.0)
    return getattr(deep, kind)(module=module, device=context.device, **settings)


def _make_sisa_net(context: CellContext, *, n_shards: int = N_SHARDS, n_slices: int = 1) -> Any:
    return _make_net(
        context,
        kind="SISANetClassifier",
        n_shards=n_shards,
        n_slices=n_slices,
        epochs=4 if context.small else 6,
        optimizer="adam",
        learning_rate=0.005,
        schedule="one-cycle",
        batch_size=32,
    )


def _make_obliviate(context: CellContext, *, epsilon: float) -> Any:
    return _make_net(
        context,
        kind="DeepObliviateClassifier",
        n_blocks=N_BLOCKS,
        epochs=2 if context.small else 4,
        optimizer="sgd",
        learning_rate=0.15,
        batch_size=10,
        anneal="one-cycle",
        stop="robust",
        epsilon=epsilon,
    )


def _make_with_defaults(_: CellContext, *, module: str, name: str) -> Any:
    return getattr(import_module(module), name)()


# One shard with one slice is naive retraining.
_ORDINARY: dict[Family, Make] = {
    "linear": _make_logistic,
    "forest": _make_random_forest,
    "net": partial(_make_sisa_net, n_shards=1),
}
_N_SLICES = N_BLOCKS // N_SHARDS
_KEPT, _DESCENT = "kept Hessian", "Descent-to-Delete"
_KEPT_NOTE = "all at once, from the stored Hessian; not in the literature"
_SISA_NOTE = "S = 5, R = 4, B = 20"
_influence = partial(_make_certified, kind=linear.InfluenceClassifier)
_fisher = partial(_make_certified, kind=linear.FisherClassifier)
_descend = partial(_make_certified, kind=linear.DescentToDeleteClassifier)
_steps = partial(_descend, stop="theorem")
_delta_grad = partial(_make_linear, kind=linear.DeltaGradClassifier)
_retrain, _retrain_trees = (
    partial(_make_naive, inner=_make_logistic),
    partial(_make_naive, inner=_make_random_forest),
)

_LISTED: tuple[Variant, ...] = (
    Variant("Naive", "linear", "retrain", _retrain, most=1, attacked=False),
    Variant("SISA", "linear", "S = 5, R = 1", partial(_make_sisa, n_slices=1), "shards of SGD"),
    Variant("SISA", "linear", "S R = B", partial(_make_sisa, n_slices=_N_SLICES), _SISA_NOTE),
    Variant("Fisher", "linear", "m' = m/8", partial(_fisher, parts=8), least=8, attacked=False),
    Variant("Fisher", "linear", "m' = m", partial(_fisher, parts=1), attacked=False),
    Variant("Fisher", "linear", _KEPT, _fisher, _KEPT_NOTE),
    Variant("Influence", "linear", "m' = m/8", partial(_influence, parts=8), "", 8, attacked=False),
    Variant("Influence", "linear", "m' = m", partial(_influence, parts=1), attacked=False),
    Variant("Influence", "linear", _KEPT, _influence, _KEPT_NOTE),
    Variant("DeltaGrad", "linear", "T0 = 2", partial(_delta_grad, period=2)),
    Variant("DeltaGrad", "linear", "T0 = 20", partial(_delta_grad, period=20)),
    Variant(_DESCENT, "linear", "PGD, I = 10", partial(_steps, variant="basic", iterations=10)),
    Variant(_DESCENT, "linear", "PGD, I = 200", partial(_steps, variant="basic", iterations=200)),
    Variant(
        _DESCENT,
        "linear",
        "sRPGD, I = 50",
        partial(_steps, variant="regularized-strong", iterations=50),
        attacked=False,
    ),
    Variant(
        _DESCENT,
        "linear",
        "wRPGD, I = 50",
        partial(_steps, variant="regularized-weak", iterations=50),
        "one person at a time: the i-th request takes i^2 I steps",
        most=1,
        attacked=False,
    ),
    Variant(
        _DESCENT,
        "linear",
        "residual stop",
        _descend,
        "Newton steps until the measured gradient is small enough; not in the literature",
    ),
    Variant("Naive", "forest", "retrain", _retrain_trees, most=1, attacked=False),
    Variant("DaRE", "forest", "least d_rmax", partial(_make_dare, extreme=0)),
    Variant("DaRE", "forest", "largest d_rmax", partial(_make_dare, extreme=1)),
    Variant("Boosting", "forest", "preset fast", partial(_make_boosting, preset="fast")),
    Variant("Boosting", "forest", "preset accurate", partial(_make_boosting, preset="accurate")),
    Variant("Naive", "net", "retrain", _ORDINARY["net"], most=1, attacked=False),
    Variant("SISA", "net", "S = 5, R = 1", _make_sisa_net),
    Variant("SISA", "net", "S R = B", partial(_make_sisa_net, n_slices=_N_SLICES), _SISA_NOTE),
    Variant("DeepObliviate", "net", "epsilon = 0.05", partial(_make_obliviate, epsilon=0.05)),
    Variant("DeepObliviate", "net", "epsilon = 0.1", partial(_make_obliviate, epsilon=0.1)),
)
_KNOWN = {variant.method.lower() for variant in _LISTED}
# A registered method without variants is run with its defaults, among the linear models.
VARIANTS = _LISTED + tuple(
    Variant(name, "linear", "defaults", partial(_make_with_defaults, module=each.module, name=name))
    for each in REGISTRY
    for name in each.class_names[:1]
    if each.is_candidate and each.module != "letheon.deep" and each.name not in _KNOWN
)
METHODS = tuple(dict.fromkeys(variant.method for variant in VARIANTS))


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """Data sets, methods and sizes of a run.

    Attributes
    ----------
    datasets : tuple of str
        Names; see `DATASETS` and `QUICK_DATASETS`.
    methods : tuple of str or None
        Methods, by their names in the table; None for all.
    families : tuple of {"linear", "forest", "net"}
        Model families.
    removed : tuple of str
        People to remove: a number (``"100"``) or a share (``"1%"``). All are removed in one
        request. For ``"1"``, several people are removed one after the other, and the mean time is
        reported.
    attack_removed : str
        People to remove in cells with attacks.
    seeds : int
        Repetitions of every cell.
    rows, net_rows, attack_rows, test_rows : int
        Maximum numbers of rows for training linear models and forests, for training networks, for
        training attacked models, and for testing.
    attacks : bool
        Whether to run attacks.
    small : bool
        Small models: fewer trees, fewer epochs.
    device : str
        Device for training networks.
    synthetic : {"never", "if-absent"}
        Whether synthetic tables replace missing files.
    random_state : int
        Seed of splits, samples and trials.

    Examples
    --------
    >>> options = BenchmarkOptions.quick(methods=("NearestCentroid",), attacks=False)
    >>> options.datasets, options.removed
    (('breast-cancer', 'digits'), ('1', '10%'))
    """

    datasets: tuple[str, ...] = DATASETS
    methods: tuple[str, ...] | None = None
    families: tuple[Family, ...] = ("linear", "forest", "net")
    removed: tuple[str, ...] = ("1", "100", "1%", "10%")
    attack_removed: str = "100"
    seeds: int = 5
    rows: int = 5_000
    net_rows: int = 2_000
    attack_rows: int = 1_000
    test_rows: int = 4_000
    attacks: bool = True
    small: bool = False
    device: str = "cpu"
    synthetic: Literal["never", "if-absent"] = "never"
    random_state: int = 0

    def __post_init__(self) -> None:
        """Raise `ValueError` if a value of `removed` is neither a number nor a share."""
        for removed in self.removed:
            parse_removed(removed)

    @classmethod
    def quick(cls, **others: Any) -> "BenchmarkOptions":
        """Return the options of a run of about two minutes on data included in scikit-learn."""
        usual: dict[str, Any] = {
            "datasets": QUICK_DATASETS,
            "removed": ("1", "10%"),
            "attack_removed": "10%",
            "seeds": 2,
            "rows": 800,
            "net_rows": 800,
            "attack_rows": 400,
            "small": True,
        }
        return cls(**(usual | others))

    def max_rows(self, cell: "BenchmarkCell") -> int:
        """Return the maximum number of training rows of a cell."""
        most = self.net_rows if cell.family == "net" else self.rows
        return min(most, self.attack_rows) if cell.kind == "attack" else most

    def fingerprint(self, cell: "BenchmarkCell") -> dict[str, Any]:
        """Return the values that determine a cell's result.

        A resumed run keeps a stored result only if its fingerprint is the same.

        The device is not included, so that results from another machine can be added.
        """
        return {
            **asdict(cell),
            "seeds": self.seeds,
            "rows": self.max_rows(cell),
            "test_rows": self.test_rows,
            "small": self.small,
            "random_state": self.random_state,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class BenchmarkCell:
    """One experiment: a method with a setting on a data set, and the people to remove.

    Parameters
    ----------
    dataset, method, setting : str
        Names of the data set, the method and its setting.
    family : {"linear", "forest", "net"}
        Family of the model.
    removed : str
        How many people leave, as a number or share.
    kind : {"measure", "attack"}, default="measure"
        Kind of the experiment.

    Examples
    --------
    >>> cell = BenchmarkCell(dataset="digits", method="SISA", family="linear", setting="S=5",
    ...                      removed="10%")
    >>> cell.name
    'digits_sisa_linear_s-5_10pc_measure'
    """

    dataset: str
    method: str
    family: Family
    setting: str
    removed: str
    kind: Kind = "measure"

    @property
    def name(self) -> str:
        """Unique, readable name of the result file of this cell, without suffix."""
        parts = [getattr(self, field.name) for field in fields(self)]
        words = [re.sub(r"[^a-z0-9.%]+", "-", str(part).lower()).strip("-") for part in parts]
        return "_".join(words).replace("%", "pc")


def parse_removed(text: str) -> float:
    """Return the number (``"100"``) or the share (``"10%"``, below 1) of people to remove.

    Examples
    --------
    >>> parse_removed("10%"), parse_removed("100")
    (0.1, 100)
    """
    if re.fullmatch(r"\d+(\.\d+)? ?%", text):
        share = float(text.rstrip("% ")) / 100
        if 0 < share < 1:
            return share
    elif re.fullmatch(r"[1-9]\d*", text):
        return int(text)
    raise ValueError(
        f"removed={text!r} is not valid: expected a number of people >= 1, or a percentage "
        f"between 0% and 100% such as 10%"
    )


def list_cells(options: BenchmarkOptions) -> list[BenchmarkCell]:
    """Return all cells, grouped by data set, so that each data set is loaded once.

    Parameters
    ----------
    options : BenchmarkOptions
        Data sets, methods and numbers of people.

    Returns
    -------
    list of BenchmarkCell

    Examples
    --------
    >>> options = BenchmarkOptions.quick(methods=("NearestCentroid",), attacks=False)
    >>> [(cell.dataset, cell.removed) for cell in list_cells(options)]
    [('breast-cancer', '1'), ('breast-cancer', '10%'), ('digits', '1'), ('digits', '10%')]
    """
    cells = []
    for dataset in options.datasets:
        for family in options.families:
            for variant in VARIANTS:
                is_selected = options.methods is None or variant.method in options.methods
                if not is_selected or variant.family != family:
                    continue
                method, _, setting = variant[:3]
                first = BenchmarkCell(
                    dataset=dataset, method=method, family=family, setting=setting, removed=""
                )
                cells += [replace(first, removed=r) for r in options.removed if variant.supports(r)]
                if options.attacks and variant.attacked:
                    cells.append(replace(first, removed=options.attack_removed, kind="attack"))
    return cells
