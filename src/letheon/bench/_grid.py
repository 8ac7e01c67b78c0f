"""Which cells the benchmark has: data set x method x setting x people removed.

Every method has recipes with both extremes of its efficiency parameters.
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
# B of DeepObliviate; SISA gets as many parts, S shards times R slices.
N_BLOCKS = 20
N_SHARDS = 5
EPSILON, DELTA = 1.0, 1e-4
# Above so many columns L-BFGS is faster than Newton's method.
_CHOLESKY_COLUMNS = 200


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a recipe has to know about the cell it is made for.

    Attributes
    ----------
    n_rows, n_columns : int
        Shape of the training rows.
    n_leaving : int
        People who leave in one request, m.
    is_image : bool
        Whether rows are images.
    random_depths : tuple of int
        Random levels of the forest: within 0.1 % and within 1 % of the cross-validated accuracy.
    small : bool
        Small models.
    device : str
        Where nets are trained.
    """

    n_rows: int
    n_columns: int
    n_leaving: int
    is_image: bool = False
    random_depths: tuple[int, int] = (1, 3)
    small: bool = False
    device: str = "cpu"

    @property
    def l2(self) -> float:
        """Regulariser per row: that of earlier work, larger for images."""
        return 1e-3 if self.is_image else 1e-4

    @property
    def n_trees(self) -> int:
        """Trees of every forest."""
        return 10 if self.small else 50


Make = Callable[[Place], Any]


class Recipe(NamedTuple):
    """A method with one setting.

    `least` and `most` are the numbers of people in a request for which the setting makes sense:
    an eighth of one person is nobody, some theorems take hours for a crowd, and naive retraining
    takes as long for one as for many.
    """

    method: str
    family: Family
    setting: str
    make: Make
    note: str = ""
    least: int = 1
    most: int | None = None
    attacked: bool = True

    def serves(self, removed: str) -> bool:
        """Whether so many people may leave at once; a share counts as many."""
        n = 100 if removed.endswith("%") else int(removed)
        return self.least <= n and (self.most is None or n <= self.most)


def find_recipe(method: str, family: Family, setting: str) -> Recipe:
    """Return the recipe of a cell."""
    for recipe in RECIPES:
        if recipe[:3] == (method, family, setting):
            return recipe
    raise ValueError(f"no recipe for {method} ({family}) with {setting!r}")


def ordinary_model(family: Family, place: Place) -> Any:
    """Return the ordinary model of a family, without unlearning support."""
    return _ORDINARY[family](place)


def _logistic(place: Place) -> Any:
    from sklearn.linear_model import LogisticRegression

    solver = "newton-cholesky" if place.n_columns <= _CHOLESKY_COLUMNS else "lbfgs"
    return LogisticRegression(C=1.0, fit_intercept=False, solver=solver, max_iter=1_000)


def _random_forest(place: Place) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(place.n_trees, n_jobs=1, random_state=0)


def _naive(place: Place, *, inner: Make) -> Any:
    return naive.NaiveUnlearner(inner(place))


def _linear(place: Place, *, kind: Any, **settings: Any) -> Any:
    return kind(l2=place.l2, fit_intercept=False, rows="clip", row_norm=1.0, **settings)


def _certified(place: Place, *, parts: int | None = None, **settings: Any) -> Any:
    """Return a certified model; `parts` are the batches of a request."""
    if parts is not None:
        settings["batch_size"] = max(1, place.n_leaving // parts)
    return _linear(place, epsilon=EPSILON, delta=DELTA, **settings)


def _sisa(place: Place, *, n_slices: int) -> Any:
    from sklearn.linear_model import SGDClassifier

    inner = SGDClassifier(
        loss="log_loss", alpha=place.l2, fit_intercept=False, learning_rate="optimal"
    )
    return sharded.SISAClassifier(inner, n_shards=N_SHARDS, n_slices=n_slices, epochs=10)


def _dare(place: Place, *, extreme: int) -> Any:
    # Only here: forests need the compiled core, and the benchmarks of nets run without it.
    from letheon.forest import DaREForestClassifier

    return DaREForestClassifier(
        n_estimators=place.n_trees, random_depth=place.random_depths[extreme], n_jobs=1
    )


def _net(place: Place, *, kind: str, **settings: Any) -> Any:
    from letheon import deep

    module: Any = deep.MLP(widths=(32,))
    if place.is_image:
        module = deep.CNN(channels=(8, 16), hidden=0, pool="stride", conv="cudnn", scale=1.0)
    return getattr(deep, kind)(module=module, device=place.device, **settings)


def _sisa_net(place: Place, *, n_shards: int = N_SHARDS, n_slices: int = 1) -> Any:
    return _net(
        place,
        kind="SISANetClassifier",
        n_shards=n_shards,
        n_slices=n_slices,
        epochs=4 if place.small else 6,
        optimizer="adam",
        learning_rate=0.005,
        schedule="one-cycle",
        batch_size=32,
    )


def _obliviate(place: Place, *, epsilon: float) -> Any:
    return _net(
        place,
        kind="DeepObliviateClassifier",
        n_blocks=N_BLOCKS,
        epochs=2 if place.small else 4,
        optimizer="sgd",
        learning_rate=0.15,
        batch_size=10,
        anneal="one-cycle",
        stop="robust",
        epsilon=epsilon,
    )


def _with_defaults(_: Place, *, module: str, name: str) -> Any:
    return getattr(import_module(module), name)()


# One shard and one slice are naive retraining.
_ORDINARY: dict[Family, Make] = {
    "linear": _logistic,
    "forest": _random_forest,
    "net": partial(_sisa_net, n_shards=1),
}
_N_SLICES = N_BLOCKS // N_SHARDS
_KEPT, _DESCENT = "kept Hessian", "Descent-to-Delete"
_KEPT_NOTE = "all at once, from the Hessian that is kept; not in the literature"
_SISA_NOTE = "S = 5, R = 4, B = 20"
_influence = partial(_certified, kind=linear.InfluenceClassifier)
_fisher = partial(_certified, kind=linear.FisherClassifier)
_descend = partial(_certified, kind=linear.DescentToDeleteClassifier)
_steps = partial(_descend, stop="theorem")
_delta_grad = partial(_linear, kind=linear.DeltaGradClassifier)
_retrain, _retrain_trees = partial(_naive, inner=_logistic), partial(_naive, inner=_random_forest)

_LISTED: tuple[Recipe, ...] = (
    Recipe("Naive", "linear", "retrain", _retrain, most=1, attacked=False),
    Recipe("SISA", "linear", "S = 5, R = 1", partial(_sisa, n_slices=1), "shards of SGD"),
    Recipe("SISA", "linear", "S R = B", partial(_sisa, n_slices=_N_SLICES), _SISA_NOTE),
    Recipe("Fisher", "linear", "m' = m/8", partial(_fisher, parts=8), least=8, attacked=False),
    Recipe("Fisher", "linear", "m' = m", partial(_fisher, parts=1), attacked=False),
    Recipe("Fisher", "linear", _KEPT, _fisher, _KEPT_NOTE),
    Recipe("Influence", "linear", "m' = m/8", partial(_influence, parts=8), "", 8, attacked=False),
    Recipe("Influence", "linear", "m' = m", partial(_influence, parts=1), attacked=False),
    Recipe("Influence", "linear", _KEPT, _influence, _KEPT_NOTE),
    Recipe("DeltaGrad", "linear", "T0 = 2", partial(_delta_grad, period=2)),
    Recipe("DeltaGrad", "linear", "T0 = 20", partial(_delta_grad, period=20)),
    Recipe(_DESCENT, "linear", "PGD, I = 10", partial(_steps, variant="basic", iterations=10)),
    Recipe(_DESCENT, "linear", "PGD, I = 200", partial(_steps, variant="basic", iterations=200)),
    Recipe(
        _DESCENT,
        "linear",
        "sRPGD, I = 50",
        partial(_steps, variant="regularized-strong", iterations=50),
        attacked=False,
    ),
    Recipe(
        _DESCENT,
        "linear",
        "wRPGD, I = 50",
        partial(_steps, variant="regularized-weak", iterations=50),
        "one person at a time: the i-th request takes i^2 I steps",
        most=1,
        attacked=False,
    ),
    Recipe(
        _DESCENT,
        "linear",
        "residual stop",
        _descend,
        "Newton steps until the measured gradient is small enough; not in the literature",
    ),
    Recipe("Naive", "forest", "retrain", _retrain_trees, most=1, attacked=False),
    Recipe("DaRE", "forest", "least d_rmax", partial(_dare, extreme=0)),
    Recipe("DaRE", "forest", "largest d_rmax", partial(_dare, extreme=1)),
    Recipe("Naive", "net", "retrain", _ORDINARY["net"], most=1, attacked=False),
    Recipe("SISA", "net", "S = 5, R = 1", _sisa_net),
    Recipe("SISA", "net", "S R = B", partial(_sisa_net, n_slices=_N_SLICES), _SISA_NOTE),
    Recipe("DeepObliviate", "net", "epsilon = 0.05", partial(_obliviate, epsilon=0.05)),
    Recipe("DeepObliviate", "net", "epsilon = 0.1", partial(_obliviate, epsilon=0.1)),
)
_KNOWN = {recipe.method.lower() for recipe in _LISTED}
# A registered method without recipes of its own is tried with its defaults, beside linear models.
RECIPES = _LISTED + tuple(
    Recipe(name, "linear", "defaults", partial(_with_defaults, module=each.module, name=name))
    for each in REGISTRY
    for name in each.class_names[:1]
    if each.is_candidate and each.module != "letheon.deep" and each.name not in _KNOWN
)
METHODS = tuple(dict.fromkeys(recipe.method for recipe in RECIPES))


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run and how large.

    Attributes
    ----------
    datasets : tuple of str
        Names; see `DATASETS` and `QUICK_DATASETS`.
    methods : tuple of str or None
        Methods, by the names of the table; None: all.
    families : tuple of {"linear", "forest", "net"}
        Model families.
    removed : tuple of str
        People who leave: a number (``"100"``) or a share (``"1%"``). All of them in one request,
        but for ``"1"``: then one after the other leaves, so that the time of one is a mean.
    attack_removed : str
        People whom the attackers are after.
    seeds : int
        Repetitions of every cell.
    rows, net_rows, attack_rows, test_rows : int
        Rows at most: to train linear models and forests, nets, models under attack, and to test.
    attacks : bool
        Whether attacks are run too.
    small : bool
        Small models: fewer trees, fewer epochs.
    device : str
        Where nets are trained.
    synthetic : {"never", "if-absent"}
        Whether made-up tables stand in for absent files.
    random_state : int
        Seed of splits, samples and trials.
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
        """Reject people who are neither a number nor a share."""
        for removed in self.removed:
            share_or_number(removed)

    @classmethod
    def quick(cls, **others: Any) -> "Options":
        """Return the options of a run of about two minutes on data that ship with scikit-learn."""
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

    def rows_of(self, cell: "Cell") -> int:
        """Return how many rows a cell trains on at most."""
        most = self.net_rows if cell.family == "net" else self.rows
        return min(most, self.attack_rows) if cell.kind == "attack" else most

    def fingerprint(self, cell: "Cell") -> dict[str, Any]:
        """Return what a cell's result depends on; a result with another one is not resumed.

        The device is not in it: nets may be run elsewhere and their cells put beside the others.
        """
        return {
            **asdict(cell),
            "seeds": self.seeds,
            "rows": self.rows_of(cell),
            "test_rows": self.test_rows,
            "small": self.small,
            "random_state": self.random_state,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One experiment: a method with a setting on a data set, and so many people who leave."""

    dataset: str
    method: str
    family: Family
    setting: str
    removed: str
    kind: Kind = "measure"

    @property
    def name(self) -> str:
        """Name of its file: unique, and readable."""
        parts = [getattr(self, field.name) for field in fields(self)]
        words = [re.sub(r"[^a-z0-9.%]+", "-", str(part).lower()).strip("-") for part in parts]
        return "_".join(words).replace("%", "pc")


def share_or_number(text: str) -> float:
    """Return the people who leave: a share below 1 for ``"10%"``, a whole number for ``"100"``.

    Examples
    --------
    >>> share_or_number("10%"), share_or_number("100")
    (0.1, 100)
    """
    if re.fullmatch(r"\d+(\.\d+)? ?%", text):
        share = float(text.rstrip("% ")) / 100
        if 0 < share < 1:
            return share
    elif re.fullmatch(r"[1-9]\d*", text):
        return int(text)
    raise ValueError(f"{text!r}; expected a number of people from 1, or a share such as 10%")


def cells_of(options: Options) -> list[Cell]:
    """Return all cells, data set by data set: a data set is loaded once for all its cells."""
    cells = []
    for dataset in options.datasets:
        for family in options.families:
            for recipe in RECIPES:
                is_wanted = options.methods is None or recipe.method in options.methods
                if not is_wanted or recipe.family != family:
                    continue
                method, _, setting = recipe[:3]
                first = Cell(
                    dataset=dataset, method=method, family=family, setting=setting, removed=""
                )
                cells += [replace(first, removed=r) for r in options.removed if recipe.serves(r)]
                if options.attacks and recipe.attacked:
                    cells.append(replace(first, removed=options.attack_removed, kind="attack"))
    return cells
