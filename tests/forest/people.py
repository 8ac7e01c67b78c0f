"""Made-up people for the forest's tests: tables of every kind, settings, and requests."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.forest import DaREForestClassifier, DaREForestRegressor

TINY = np.float32(1e-45)
EXTREMES: NDArray[np.float64] = np.array(
    [-3.4e38, -1.0, -TINY, -0.0, 0.0, TINY, 1e-38, 1.0, np.nextafter(np.float32(1), 2), 3.4e38]
)
PLAIN = ("normal", "normal", "few", "skewed", "hundreds", "binary")
COLUMNS = (*PLAIN, "rare", "seldom", "constant", "extreme", "close")
Y_BOUNDS = {"few": 1.0, "normal": 100.0, "huge": 1e302, "subnormal": 1e-320}
LABELS = np.array(["ash", "beech", "Douglas fir", *(f"elm {i}" for i in range(20))], dtype=object)


class ForestPeople(NamedTuple):
    """Rows with their owners; a person may own many."""

    X: NDArray[np.float64]
    y: NDArray[Any]
    weight: NDArray[np.int64]
    ids: NDArray[Any]

    @property
    def n_rows(self) -> int:
        return len(self.y)

    def take(self, which: Any) -> "ForestPeople":
        return ForestPeople(*(part[which] for part in self))

    def held(self) -> "ForestPeople":
        """A row of weight 0 is not there."""
        return self.take(self.weight > 0)

    def without(self, gone: Iterable[Any]) -> "ForestPeople":
        left = set(gone)
        return self.take(np.array([owner not in left for owner in self.ids], dtype=bool))

    def plus(self, more: "ForestPeople") -> "ForestPeople":
        return ForestPeople(*(np.concatenate(pair) for pair in zip(self, more, strict=True)))

    def shuffled(self, seed: int) -> "ForestPeople":
        return self.take(np.random.default_rng(seed).permutation(self.n_rows))

    @property
    def persons(self) -> list[Any]:
        return sorted(set(self.ids.tolist()))

    @property
    def sample_weight(self) -> NDArray[np.int64] | None:
        """None where it says the same."""
        return None if (self.weight == 1).all() else self.weight


class DataSource(NamedTuple):
    """Where rows come from: what columns, labels, weights and ids look like."""

    columns: tuple[str, ...]
    missing: tuple[float, ...]
    n_classes: int  # 0: regression
    text_labels: bool
    text_ids: bool
    max_weight: int
    y_kind: str
    n_people: int

    @property
    def is_classifier(self) -> bool:
        return self.n_classes > 0

    def people(
        self, rng: np.random.Generator, n: int, n_classes: int | None = None
    ) -> ForestPeople:
        """Return `n` rows, of the first `n_classes` classes only when that is given."""
        X = np.column_stack([_column(rng, n, kind) for kind in self.columns])
        X[rng.random(X.shape) < np.array(self.missing)] = np.nan
        weight = rng.integers(0, self.max_weight + 1, n) if self.max_weight else np.ones(n, int)
        weight[0] = max(1, weight[0])
        ids: NDArray[Any] = rng.integers(-3, self.n_people - 3, n)
        if self.text_ids:
            ids = np.array([f"né {owner}" for owner in ids], dtype=object)
        y = self._classes(rng, X, n_classes) if self.is_classifier else self._values(rng, X)
        return ForestPeople(X, y, weight, ids)

    def _classes(
        self, rng: np.random.Generator, X: NDArray[np.float64], n_classes: int | None
    ) -> NDArray[Any]:
        n_classes = min(n_classes or self.n_classes, self.n_classes)
        signal = (np.nan_to_num(X[:, 0]) > 0).astype(int) % n_classes
        codes = np.where(rng.random(len(X)) < 0.5, signal, rng.integers(0, n_classes, len(X)))
        # The label that comes last sorts first: codes and sorted labels differ.
        return LABELS[-1 - codes] if self.text_labels else 7 - 3 * codes

    def _values(self, rng: np.random.Generator, X: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.y_kind == "few":
            return rng.integers(-1, 2, len(X)).astype(float)
        scale = 2.0 ** rng.integers(-4, 4, len(X))
        y = np.clip(rng.normal(size=len(X)), -4, 4) * scale + (np.nan_to_num(X[:, 0]) > 0)
        return y * {"normal": 1.0, "huge": 1e300, "subnormal": 5e-324}[self.y_kind]


def _column(rng: np.random.Generator, n: int, kind: str) -> NDArray[np.float64]:
    if kind == "normal":
        return rng.normal(size=n)
    if kind == "extreme":
        return rng.choice(EXTREMES, n)
    if kind == "close":  # neighbours that one float32 may hold together
        return np.asarray(1 + rng.integers(0, 6, n) * 2.0**-25, dtype=np.float64)
    if kind == "skewed":  # now and then a new value
        return rng.geometric(0.6, n).astype(float)
    if kind in ("rare", "seldom"):
        return (rng.random(n) < {"rare": 0.1, "seldom": 0.01}[kind]).astype(float)
    n_values = {"hundreds": 300, "few": 4, "binary": 2, "constant": 1}[kind]
    return rng.integers(0, n_values, n).astype(float)


# Tests draw one number and make all choices from it: hypothesis itself prefers the simplest table
# so often that most trees would be single leaves.
lucks = st.integers(0, 2**64 - 1)


def pick(rng: np.random.Generator, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def any_seed(rng: np.random.Generator) -> int:
    return int.from_bytes(rng.bytes(16), "little")


def any_world(rng: np.random.Generator, *, classifier: bool | None = None) -> DataSource:
    """Tables of every kind; the plain ones more often, so that trees grow."""
    n_columns = int(rng.integers(1, 6))
    columns = tuple(pick(rng, *COLUMNS) for _ in range(n_columns))
    columns = pick(rng, *[columns] * 4, ("rare",) * 12 + ("binary",) * 6)
    missing = tuple(pick(rng, 0.0, 0.0, 0.0, 0.02, 0.1, 0.5, 0.9, 1.0) for _ in columns)
    classifier = pick(rng, True, False) if classifier is None else classifier
    return DataSource(
        columns=columns,
        missing=pick(rng, (0.0,) * len(columns), missing),
        n_classes=pick(rng, 1, 2, 2, 2, 2, 3, 3, 4, 5, 20) if classifier else 0,
        text_labels=pick(rng, True, False),
        text_ids=pick(rng, True, False),
        max_weight=pick(rng, 0, 0, 0, 0, 1, 3, 100, 2**18),
        y_kind=pick(rng, "normal", *Y_BOUNDS),
        n_people=pick(rng, 2, 12, 1000, 1000),
    )


def any_parameters(rng: np.random.Generator, world: DataSource) -> dict[str, Any]:
    """Every option, at values where something happens on small tables."""
    chosen = {
        "n_estimators": pick(rng, 1, 2, 3, 4),
        "max_depth": pick(rng, *[None] * 6, 10, 4, 4, 2, 1, 0),
        "max_features": pick(rng, None, "sqrt", "log2", 0.5, 1, len(world.columns)),
        "n_thresholds": pick(rng, None, 1, 2, 5, 25),
        "random_depth": pick(rng, *[0] * 4, 1, 2, 20),
        "min_samples_split": pick(rng, *[2] * 5, 3, 8),
        "min_samples_leaf": pick(rng, *[1] * 6, 2, 2, 5),
        "subsample": pick(rng, *[1.0] * 6, 0.5, 0.5, 0.1),
        "categorical_features": _some_columns(rng, len(world.columns)),
    }
    if world.is_classifier:
        return chosen | {"criterion": pick(rng, "gini", "entropy")}
    return chosen | {"y_max": pick(rng, None, None, Y_BOUNDS[world.y_kind])}


def _some_columns(rng: np.random.Generator, n: int) -> list[int]:
    """Return columns of categories: none in half of the cases."""
    return pick(rng, [], np.flatnonzero(rng.random(n) < 0.6).tolist())  # type: ignore[no-any-return]


def any_comfort(rng: np.random.Generator) -> dict[str, Any]:
    """Options that must not change anything."""
    return {"rebuild": pick(rng, "lazy", "eager"), "n_jobs": pick(rng, None, 1, 2)}


def new_model(world: DataSource, params: dict[str, Any], seed: int) -> Any:
    kind = DaREForestClassifier if world.is_classifier else DaREForestRegressor
    return kind(**params, random_state=seed)


def fitted(world: DataSource, params: dict[str, Any], people: ForestPeople, seed: int) -> Any:
    model = new_model(world, params, seed)
    return model.fit(people.X, people.y, sample_weight=people.sample_weight, ids=people.ids)


def raw_predictions(model: Any, X: NDArray[Any]) -> NDArray[np.float64]:
    """Return probabilities (n, C), or values (n, 1)."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(X))
    return np.asarray(model.predict(X))[:, None]


def examples(count: int) -> settings:
    """`count` examples in `make test`, ten times as many in `make soak`."""
    return settings(max_examples=max(1, count * settings().max_examples // 100))
