"""Models with predictors, and the rows they are fitted on."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.decomposition import PCA as SklearnPCA
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import KBinsDiscretizer, Normalizer, SplineTransformer
from sklearn.preprocessing import StandardScaler as SklearnScaler
from sklearn.tree import DecisionTreeRegressor

from letheon import (
    BoostingClassifier,
    BoostingRegressor,
    DaREForestClassifier,
    DaREForestRegressor,
    DeltaGradClassifier,
    DescentToDeleteClassifier,
    FisherClassifier,
    ForgetPipeline,
    InfluenceClassifier,
    InfluenceRegressor,
    NaiveUnlearner,
    SISAClassifier,
    SISARegressor,
)
from letheon.preprocessing import (
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
    Ridge,
    RidgeClassifier,
)

N = 300
_RNG = np.random.default_rng(0)
NUMBERS = _RNG.normal(size=(N, 4))
NUMBERS.flags.writeable = False
THREE = (NUMBERS[:, 0] + NUMBERS[:, 1] > 0).astype(int) + (NUMBERS[:, 2] > 1)
TWO = np.array(["no", "yes"])[(NUMBERS[:, 0] > 0).astype(int)]
TARGET = NUMBERS[:, 0] * 2 - NUMBERS[:, 3] + 5
COUNTS = np.abs(np.round(NUMBERS * 2))
GAPS = np.where(_RNG.random(NUMBERS.shape) < 0.1, np.nan, NUMBERS)
TEXTS = [" ".join(words) for words in _RNG.choice(["red", "green", "blue", "pear"], (N, 5))]
FRAME = pd.DataFrame(GAPS, columns=list("abcd")).assign(
    city=_RNG.choice(
        np.array(["Oslo", "Rome", "Bern", "Nice", None], object), N, p=[0.4, 0.3, 0.2, 0.01, 0.09]
    ),
    sex=pd.Categorical(_RNG.choice(["f", "m"], N)),
    floor=_RNG.integers(0, 4, N).astype(float),
)


def make_columns() -> ForgetColumnTransformer:
    """Return transformers for all columns of the frame."""
    numbers = ForgetPipeline(
        [
            ("fill", SimpleImputer(add_indicator=True, random_state=0)),
            ("scale", StandardScaler(random_state=0)),
        ]
    )
    cities = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=10)
    floors = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return ForgetColumnTransformer(
        [
            ("numbers", numbers, list("abcd")),
            ("city", cities, ["city", "sex"]),
            ("floor", floors, ["floor"]),
        ]
    )


def make_pipeline(*steps: Any) -> ForgetPipeline:
    """Return a pipeline with numbered steps."""
    return ForgetPipeline([(f"step{number}", step) for number, step in enumerate(steps)])


def make_forest(**parameters: Any) -> DaREForestClassifier:
    """Return a small forest."""
    return DaREForestClassifier(n_estimators=5, random_state=0, **parameters)


Case = tuple[Any, Any, NDArray[Any]]

TREES: dict[str, Case] = {
    "forest": (make_forest(), GAPS, THREE),
    "sampled-forest": (make_forest(subsample=0.005), GAPS, TWO),
    "empty-forest": (make_forest(subsample=1e-9), GAPS, THREE),
    "frame-forest": (make_forest(random_depth=2), FRAME, THREE),
    "regression-forest": (DaREForestRegressor(n_estimators=5, random_state=0), FRAME, TARGET),
    "boosting": (BoostingClassifier(n_estimators=5, random_state=0), GAPS, TWO),
    "frame-boosting": (BoostingClassifier(n_estimators=5, random_state=0), FRAME, THREE),
    "regression-boosting": (BoostingRegressor(n_estimators=5, random_state=0), GAPS, TARGET),
    "poisson": (
        BoostingRegressor(n_estimators=5, loss="poisson", random_state=0),
        GAPS,
        np.abs(TARGET),
    ),
}
LINEAR: dict[str, Case] = {
    "ridge": (Ridge(random_state=0), NUMBERS, TARGET),
    "two-targets": (Ridge(random_state=0), NUMBERS, NUMBERS[:, :2] * 2 + 1),
    "ridge-two": (RidgeClassifier(random_state=0), NUMBERS, TWO),
    "ridge-three": (RidgeClassifier(random_state=0), NUMBERS, THREE),
    "lda-two": (LinearDiscriminantAnalysis(random_state=0), NUMBERS, TWO),
    "lda-three": (LinearDiscriminantAnalysis(random_state=0), NUMBERS, THREE),
    "multinomial": (MultinomialNB(), COUNTS, THREE),
    "complement": (ComplementNB(), COUNTS, THREE),
    "bernoulli": (BernoulliNB(), NUMBERS, THREE),
    "influence": (InfluenceClassifier(sigma=0.1), NUMBERS, THREE),
    "influence-clip": (
        InfluenceClassifier(sigma=0.1, rows="clip", row_norm=1.5),
        NUMBERS,
        TWO,
    ),
    "influence-regression": (
        InfluenceRegressor(sigma=0.1, rows="normalize", row_norm=1.0),
        NUMBERS,
        TARGET,
    ),
    "fisher": (FisherClassifier(), NUMBERS, TWO),
    "deltagrad": (DeltaGradClassifier(), NUMBERS, TWO),
    "descent": (DescentToDeleteClassifier(), NUMBERS, TWO),
    "naive": (NaiveUnlearner(make_forest(), random_state=0), NUMBERS, THREE),
}
PIPELINES: dict[str, Case] = {
    "ridge-pipeline": (
        make_pipeline(make_columns(), RidgeClassifier(random_state=0)),
        FRAME,
        THREE,
    ),
    "forest-pipeline": (make_pipeline(make_columns(), make_forest()), FRAME, THREE),
    "robust-pipeline": (
        make_pipeline(
            SimpleImputer(random_state=0),
            "passthrough",
            RobustScaler(random_state=0),
            LinearDiscriminantAnalysis(random_state=0),
        ),
        GAPS,
        THREE,
    ),
}
# Without an ONNX form.
OTHERS: dict[str, Case] = {
    "qda": (QuadraticDiscriminantAnalysis(random_state=0), NUMBERS, THREE),
    "gauss": (GaussianNB(random_state=0), NUMBERS, THREE),
    "categorical": (CategoricalNB(), COUNTS, THREE),
    "bins": (make_pipeline(QuantileBinner(random_state=0), make_forest()), GAPS, THREE),
    "target": (
        make_pipeline(TargetEncoder(random_state=0), make_forest()),
        FRAME[["city", "sex"]],
        THREE,
    ),
    "texts": (make_pipeline(TfidfVectorizer(), MultinomialNB()), TEXTS, THREE),
    "pca": (
        make_pipeline(PCA(random_state=0), Normalizer(), GaussianNB(random_state=0)),
        NUMBERS,
        TWO,
    ),
    "sampled-pca": (
        make_pipeline(KeyedSample(SklearnPCA(2), n_people=100, random_state=0), make_forest()),
        NUMBERS,
        THREE,
    ),
    "sampled-bins": (
        make_pipeline(
            KeyedSample(
                KBinsDiscretizer(4, encode="ordinal", quantile_method="linear"), random_state=0
            ),
            GaussianNB(random_state=0),
        ),
        NUMBERS,
        TWO,
    ),
    "sampled-best": (
        make_pipeline(
            KeyedSample(SplineTransformer(4), random_state=0),
            KeyedSample(SelectKBest(f_classif, k=3), random_state=0),
            RidgeClassifier(random_state=0),
        ),
        NUMBERS,
        THREE,
    ),
    "naive-scaler": (
        make_pipeline(NaiveUnlearner(SklearnScaler(), random_state=0), GaussianNB(random_state=0)),
        NUMBERS,
        TWO,
    ),
    "fixed": (make_pipeline(Normalizer(), GaussianNB(random_state=0)), NUMBERS, TWO),
    "sisa-forest": (SISAClassifier(make_forest(), n_shards=3, random_state=0), GAPS, THREE),
    "sisa-votes": (
        SISAClassifier(LogisticRegression(), n_shards=3, aggregation="vote", random_state=0),
        NUMBERS,
        THREE,
    ),
    "sisa-median": (
        SISARegressor(
            DecisionTreeRegressor(max_depth=3), n_shards=3, aggregation="median", random_state=0
        ),
        NUMBERS,
        TARGET,
    ),
}
