"""Pipelines of all transformers and models, drawn at random, on hostile columns."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from sklearn.decomposition import PCA as SkPCA
from sklearn.preprocessing import MaxAbsScaler, Normalizer
from sklearn.tree import DecisionTreeClassifier

from letheon import DaREForestClassifier, DaREForestRegressor, ForgetPipeline, SISAClassifier
from letheon.compose import clone_unfitted
from letheon.exceptions import EmptyModelError
from letheon.preprocessing import (
    CountVectorizer,
    ForgetColumnTransformer,
    KeyedSample,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileBinner,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
    TargetEncoder,
    TfidfVectorizer,
)
from letheon.sums import (
    PCA,
    BernoulliNB,
    CategoricalNB,
    ComplementNB,
    GaussianNB,
    LinearDiscriminantAnalysis,
    MultinomialNB,
    QuadraticDiscriminantAnalysis,
    RandomFeatures,
    Ridge,
    RidgeClassifier,
)

N_ROWS = 36
N_PEOPLE = 18


class HostilePeople(NamedTuple):
    """A table with its labels and ids."""

    X: pd.DataFrame
    y: np.ndarray[Any, Any]
    ids: np.ndarray[Any, Any]

    def take(self, chosen: Any) -> "HostilePeople":
        """Return some rows."""
        return HostilePeople(
            self.X[chosen].reset_index(drop=True), self.y[chosen], self.ids[chosen]
        )

    def join(self, new: "HostilePeople") -> "HostilePeople":
        """Return these rows and new ones behind them."""
        return HostilePeople(
            pd.concat([self.X, new.X], ignore_index=True),
            np.concatenate([self.y, new.y]),
            np.concatenate([self.ids, new.ids]),
        )


def hostile_people(
    seed: int, n_rows: int = N_ROWS, largest: float = 1e300, *, is_regression: bool = False
) -> HostilePeople:
    """Return rows with the columns that break careless statistics."""
    rng = np.random.default_rng(seed)
    number = rng.normal(size=n_rows)
    gaps = np.where(rng.random(n_rows) < 0.3, np.nan, rng.normal(50, 9, n_rows).round(1))
    outlier = rng.normal(size=n_rows)
    outlier[rng.integers(n_rows)] = largest
    nearly_empty = np.full(n_rows, np.nan)
    nearly_empty[rng.integers(n_rows)] = 3.0
    rare = np.array(["usual"] * n_rows, object)
    rare[rng.integers(n_rows, size=3)] = ["only one", "two", "two"]
    city = rng.choice(["Oslo", "Rome", "Lima"], n_rows).astype(object)
    city[rng.random(n_rows) < 0.15] = None
    city[0] = "Oslo"  # pandas has another type for a column without any text
    words = np.array(["red", "green", "blue", "grey", f"word{seed % 7}"])
    texts = [" ".join(rng.choice(words, rng.integers(0, 4))) for _ in range(n_rows)]
    texts[0] = "red green red"
    X = pd.DataFrame(
        {
            "number": number,
            "gaps": gaps,
            "outlier": outlier,
            "constant": np.full(n_rows, 7.0),
            "time": 1.7e9 + rng.normal(size=n_rows).round(3),
            "nearly_empty": nearly_empty,
            "flag": rng.random(n_rows) < 0.5,
            "city": city,
            "rare": rare,
            "text": texts,
        }
    )
    owners = rng.integers(N_PEOPLE, size=n_rows)
    owners[:2] = 0, 1
    ids = np.array([f"p{owner:02d}" for owner in owners])
    if is_regression:
        return HostilePeople(X, rng.normal(size=n_rows).round(2), ids)
    y = np.array(["no", "yes", "perhaps"])[rng.integers(2 + seed % 2, size=n_rows)]
    y[:4] = "no", "yes", "no", "yes"
    return HostilePeople(X, y, ids)


NUMBERS = ["number", "gaps", "outlier", "constant", "time", "nearly_empty", "flag"]
CATEGORIES = ["city", "rare"]

Part = Callable[[], Any]
IMPUTERS: list[Part] = [
    lambda: SimpleImputer(keep_empty_features=True),
    lambda: SimpleImputer(strategy="median", keep_empty_features=True),
    lambda: SimpleImputer(strategy="most_frequent", keep_empty_features=True, add_indicator=True),
    lambda: SimpleImputer(strategy="constant", fill_value=-1.0, keep_empty_features=True),
]
SCALERS: list[Part] = [
    StandardScaler,
    RobustScaler,
    lambda: QuantileBinner(n_bins=4),
    lambda: KeyedSample(MaxAbsScaler(), n_people=12),
    lambda: "passthrough",
]
ENCODERS: list[Part] = [
    lambda: OneHotEncoder(sparse_output=False, handle_unknown="ignore"),
    lambda: OneHotEncoder(sparse_output=False, handle_unknown="ignore", min_frequency=2),
    lambda: OneHotEncoder(sparse_output=False, handle_unknown="ignore", max_categories=2),
    lambda: OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    lambda: TargetEncoder(cv=3),
]
VECTORISERS: list[Part] = [
    lambda: "drop",
    lambda: CountVectorizer(min_df=2),
    TfidfVectorizer,
]
MIDDLES: list[Part] = [
    lambda: "passthrough",
    Normalizer,
    lambda: RandomFeatures(n_components=3),
    lambda: PCA(n_components=2),
    lambda: KeyedSample(SkPCA(2, svd_solver="full"), n_people=12),
]
# Steps of MIDDLES whose output follows from matrix products or solvers of BLAS and LAPACK.
BLAS_MIDDLES = (3, 4)
MODELS: list[Part] = [
    RidgeClassifier,
    GaussianNB,
    LinearDiscriminantAnalysis,
    lambda: QuadraticDiscriminantAnalysis(reg_param=0.1),
    Ridge,
    PCA,
    lambda: DaREForestClassifier(n_estimators=2, max_depth=3),
    lambda: DaREForestRegressor(n_estimators=2, max_depth=3),
    lambda: SISAClassifier(DecisionTreeClassifier(max_depth=2), n_shards=2),
    MultinomialNB,
    ComplementNB,
    BernoulliNB,
    lambda: CategoricalNB(min_categories=1000),
]
FIRST_BAYES, TREES, REGRESSORS = 9, (6, 7, 8), (4, 7)


class DrawnPipeline(NamedTuple):
    """Numbers of the parts of a pipeline."""

    imputer: int
    scaler: int
    encoder: int
    vectoriser: int
    middle: int
    model: int

    @property
    def has_blas(self) -> bool:
        """Whether published values follow from solvers, whose last bits depend on the CPU."""
        return self.middle in BLAS_MIDDLES

    @property
    def is_regression(self) -> bool:
        """Whether the target is a number."""
        return self.model in REGRESSORS

    @property
    def largest(self) -> float:
        """Return the outlier: trees use float32, and a norm or a PCA of LAPACK overflows."""
        return 1e30 if self.model in TREES or self.middle in (1, 4) else 1e300

    def build(self) -> ForgetPipeline:
        """Return the unfitted pipeline."""
        is_bayes = self.model >= FIRST_BAYES  # counts: columns without negative numbers
        scaler = 2 if is_bayes else self.scaler
        encoder = min(self.encoder, 3) if is_bayes else self.encoder
        columns = ForgetColumnTransformer(
            [
                ("numbers", _chain(IMPUTERS[self.imputer](), SCALERS[scaler]()), NUMBERS),
                ("city", _chain(_fill(), ENCODERS[encoder]()), CATEGORIES),
                ("text", VECTORISERS[0 if self.model == 12 else self.vectoriser](), "text"),
            ],
            sparse_threshold=0.0,
        )
        middle = "passthrough" if is_bayes else MIDDLES[self.middle]()
        steps = [("columns", columns), ("middle", middle), ("model", MODELS[self.model]())]
        pipeline = ForgetPipeline(steps)
        # With seeds from the system, digests would differ between processes.
        names = [name for name in pipeline.get_params() if name.endswith("random_state")]
        return pipeline.set_params(**dict.fromkeys(names, self.model))

    def draw_people(self, seed: int, n_rows: int = N_ROWS) -> HostilePeople:
        """Return rows for this pipeline."""
        return hostile_people(seed, n_rows, self.largest, is_regression=self.is_regression)


def _fill() -> SimpleImputer:
    return SimpleImputer(strategy="most_frequent")


def _chain(*steps: Any) -> ForgetPipeline:
    return ForgetPipeline([(f"s{number}", step) for number, step in enumerate(steps)])


LISTS = (IMPUTERS, SCALERS, ENCODERS, VECTORISERS, MIDDLES, MODELS)
RECIPES = st.tuples(*(st.integers(0, len(parts) - 1) for parts in LISTS)).map(
    lambda numbers: DrawnPipeline(*numbers)
)
REQUESTS = st.lists(
    st.one_of(st.sets(st.integers(0, N_PEOPLE - 1), min_size=1, max_size=3), st.integers(0, 10**6)),
    min_size=1,
    max_size=3,
)


def draw_example(number: int) -> tuple[DrawnPipeline, int, list[Any]]:
    """Return a recipe, a seed and requests without hypothesis, the same in every process."""
    rng = np.random.default_rng(number)
    recipe = DrawnPipeline(*(int(rng.integers(len(parts))) for parts in LISTS))
    gone = set(rng.choice(N_PEOPLE, 2, replace=False).tolist())
    return recipe, int(rng.integers(10**6)), [gone, int(rng.integers(10**6))]


def apply_requests(
    model: Any, recipe: DrawnPipeline, people: HostilePeople, requests: list[Any]
) -> HostilePeople:
    """Forget and learn; return the rows that the model should have now, in stored order."""
    for request in requests:
        if isinstance(request, int):
            new = recipe.draw_people(request, 4)
            model.learn(new.X, new.y, ids=new.ids)
            people = people.join(new)
            continue
        names = [name for name in (f"p{k:02d}" for k in request) if name in set(people.ids)]
        try:
            model.forget(names)
        except EmptyModelError:
            continue
        people = people.take(~np.isin(people.ids, names))
    return people


def run_recipe(
    recipe: DrawnPipeline, seed: int, requests: list[Any]
) -> tuple[Any, Any, HostilePeople]:
    """Return a pipeline after requests, a fresh fit of the remaining rows, and these rows."""
    people = recipe.draw_people(seed)
    model = recipe.build().fit(people.X, people.y, ids=people.ids)
    remaining = apply_requests(model, recipe, people, requests)
    fresh = clone_unfitted(model).fit(remaining.X, remaining.y, ids=remaining.ids)
    return model, fresh, remaining
