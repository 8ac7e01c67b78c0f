"""The methods under test, with both extremes of every efficiency parameter."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple

from letheon import linear, naive, sharded
from letheon.methods import METHODS as REGISTRY

__all__ = ["METHODS", "RECIPES", "Family", "Place", "Recipe", "find_recipe", "ordinary_model"]

Family = Literal["linear", "forest", "net"]

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
        if (recipe.method, recipe.family, recipe.setting) == (method, family, setting):
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


def _whole_net(place: Place) -> Any:
    """Return a net trained in one go: one shard and one slice are naive retraining."""
    return _sisa_net(place, n_shards=1, n_slices=1)


def _naive(inner: Make, place: Place) -> Any:
    return naive.NaiveUnlearner(inner(place))


def _linear(kind: Any, place: Place, **settings: Any) -> Any:
    return kind(l2=place.l2, fit_intercept=False, rows="clip", row_norm=1.0, **settings)


def _certified(kind: Any, place: Place, **settings: Any) -> Any:
    return _linear(kind, place, epsilon=EPSILON, delta=DELTA, **settings)


def _batched(kind: Any, parts: int, place: Place) -> Any:
    return _certified(kind, place, batch_size=max(1, place.n_leaving // parts))


def _deltagrad(period: int, place: Place) -> Any:
    return _linear(linear.DeltaGradClassifier, place, period=period)


def _descent(variant: str, iterations: int, place: Place) -> Any:
    return _certified(
        linear.DescentToDeleteClassifier,
        place,
        stop="theorem",
        variant=variant,
        iterations=iterations,
    )


def _sisa(n_slices: int, place: Place) -> Any:
    from sklearn.linear_model import SGDClassifier

    inner = SGDClassifier(
        loss="log_loss", alpha=place.l2, fit_intercept=False, learning_rate="optimal"
    )
    return sharded.SISAClassifier(inner, n_shards=N_SHARDS, n_slices=n_slices, epochs=10)


def _dare(extreme: int, place: Place) -> Any:
    # Only here: forests need the compiled core, and the benchmarks of nets run without it.
    from letheon.forest import DaREForestClassifier

    return DaREForestClassifier(
        n_estimators=place.n_trees, random_depth=place.random_depths[extreme], n_jobs=1
    )


def _module(place: Place) -> Any:
    from letheon.deep import CNN, MLP

    if place.is_image:
        return CNN(channels=(8, 16), hidden=0, pool="stride", conv="cudnn", scale=1.0)
    return MLP(widths=(32,))


def _sisa_net(place: Place, **settings: Any) -> Any:
    from letheon.deep import SISANetClassifier

    return SISANetClassifier(
        module=_module(place),
        epochs=4 if place.small else 6,
        optimizer="adam",
        learning_rate=0.005,
        schedule="one-cycle",
        batch_size=32,
        device=place.device,
        **settings,
    )


def _sharded_net(n_slices: int, place: Place) -> Any:
    return _sisa_net(place, n_shards=N_SHARDS, n_slices=n_slices)


def _obliviate(epsilon: float, place: Place) -> Any:
    from letheon.deep import DeepObliviateClassifier

    return DeepObliviateClassifier(
        module=_module(place),
        n_blocks=N_BLOCKS,
        epochs=2 if place.small else 4,
        optimizer="sgd",
        learning_rate=0.15,
        batch_size=10,
        anneal="one-cycle",
        stop="robust",
        epsilon=epsilon,
        device=place.device,
    )


_ORDINARY: dict[Family, Make] = {
    "linear": _logistic,
    "forest": _random_forest,
    "net": _whole_net,
}
_INFLUENCE, _FISHER = linear.InfluenceClassifier, linear.FisherClassifier
_KEPT = "kept Hessian"
_KEPT_NOTE = "all at once, from the Hessian that is kept; not in the literature"
_N_SLICES = N_BLOCKS // N_SHARDS


def _registered(name: str, module: str, _: Place) -> Any:
    return getattr(import_module(module), name)()


_LISTED: tuple[Recipe, ...] = (
    Recipe("Naive", "linear", "retrain", partial(_naive, _logistic), most=1, attacked=False),
    Recipe("SISA", "linear", "S = 5, R = 1", partial(_sisa, 1), "shards of SGD"),
    Recipe("SISA", "linear", "S R = B", partial(_sisa, _N_SLICES), "S = 5, R = 4, B = 20"),
    Recipe("Fisher", "linear", "m' = m/8", partial(_batched, _FISHER, 8), least=8, attacked=False),
    Recipe("Fisher", "linear", "m' = m", partial(_batched, _FISHER, 1), attacked=False),
    Recipe("Fisher", "linear", _KEPT, partial(_certified, _FISHER), _KEPT_NOTE),
    Recipe(
        "Influence", "linear", "m' = m/8", partial(_batched, _INFLUENCE, 8), least=8, attacked=False
    ),
    Recipe("Influence", "linear", "m' = m", partial(_batched, _INFLUENCE, 1), attacked=False),
    Recipe("Influence", "linear", _KEPT, partial(_certified, _INFLUENCE), _KEPT_NOTE),
    Recipe("DeltaGrad", "linear", "T0 = 2", partial(_deltagrad, 2)),
    Recipe("DeltaGrad", "linear", "T0 = 20", partial(_deltagrad, 20)),
    Recipe("Descent-to-Delete", "linear", "PGD, I = 10", partial(_descent, "basic", 10)),
    Recipe("Descent-to-Delete", "linear", "PGD, I = 200", partial(_descent, "basic", 200)),
    Recipe(
        "Descent-to-Delete",
        "linear",
        "sRPGD, I = 50",
        partial(_descent, "regularized-strong", 50),
        attacked=False,
    ),
    Recipe(
        "Descent-to-Delete",
        "linear",
        "wRPGD, I = 50",
        partial(_descent, "regularized-weak", 50),
        "one person at a time: the i-th request takes i^2 I steps",
        most=1,
        attacked=False,
    ),
    Recipe(
        "Descent-to-Delete",
        "linear",
        "residual stop",
        partial(_certified, linear.DescentToDeleteClassifier),
        "Newton steps until the measured gradient is small enough; not in the literature",
    ),
    Recipe("Naive", "forest", "retrain", partial(_naive, _random_forest), most=1, attacked=False),
    Recipe("DaRE", "forest", "least d_rmax", partial(_dare, 0)),
    Recipe("DaRE", "forest", "largest d_rmax", partial(_dare, 1)),
    Recipe("Naive", "net", "retrain", _whole_net, most=1, attacked=False),
    Recipe("SISA", "net", "S = 5, R = 1", partial(_sharded_net, 1)),
    Recipe("SISA", "net", "S R = B", partial(_sharded_net, _N_SLICES), "S = 5, R = 4, B = 20"),
    Recipe("DeepObliviate", "net", "epsilon = 0.05", partial(_obliviate, 0.05)),
    Recipe("DeepObliviate", "net", "epsilon = 0.1", partial(_obliviate, 0.1)),
)
_NETS = "letheon.deep"
_KNOWN = {recipe.method.lower() for recipe in _LISTED}
# A registered method without recipes of its own is tried with its defaults, beside linear models.
RECIPES = _LISTED + tuple(
    Recipe(
        each.class_names[0],
        "linear",
        "defaults",
        partial(_registered, each.class_names[0], each.module),
    )
    for each in REGISTRY
    if each.is_candidate and each.module != _NETS and each.name not in _KNOWN
)
METHODS = tuple(dict.fromkeys(recipe.method for recipe in RECIPES))
