"""Values that the fuzzer of the reader begins with: every kind of node and every codec.

``python -m tests.state.reader_seeds`` writes them to ``tests/data/reader_corpus/seeds``.
"""

import functools
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from letheon import state

CORPUS = Path(__file__).parents[1] / "data" / "reader_corpus"
SEEDS = CORPUS / "seeds"
RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3)).round(2)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)
TEXTS = ["red blue", "blue green", "red grey", "green green"] * 6
IDS = [f"p{i}" for i in range(24)]


def _plain() -> dict[str, Any]:
    packed = np.dtype({"names": ["a", "b"], "formats": ["<f8", "<i4"], "offsets": [8, 0]})
    nested = np.dtype([("x", packed), ("y", "<f4", (2, 2)), ("t", "<U3")], align=True)
    return {
        "atoms": [
            None,
            True,
            False,
            1,
            -1,
            2**70,
            0.5,
            -0.0,
            float("nan"),
            1 + 2j,
            "a",
            "é😀",
            b"b",
        ],
        "containers": [[1], (2, "x"), {3, 4}, frozenset({"p", "q"}), {"k": 1}, {1: 2, (3,): 4}],
        "many": {"list": list(range(300)), "set": set(range(300)), "texts": frozenset(TEXTS)},
        "arrays": [
            np.arange(6).reshape(2, 3).astype(kind)
            for kind in ("<i8", "<u2", "<f4", "<f8", "<c16", "|u1", "|b1")
        ],
        "orders": [np.asfortranarray(X[:4]), np.zeros((0, 3)), np.array(5.0), np.zeros((1, 2, 1))],
        "times": [np.array(["2020-01-01"], "<M8[D]"), np.array([5], "<m8[ns]")],
        "strings": np.array([["a", "bcd"], ["é", ""]]),
        "bytes": np.array([b"ab", b"c"]),
        "big": np.arange(600, dtype=np.float64),
        "objects": np.array([1, "x", None, (2, 3)], dtype=object),
        "fields": [np.zeros(3, packed), np.zeros((2, 2), nested), np.array((1, 2), packed)],
        "scalars": [np.float64(1.5), np.int32(3), np.bool_(True), np.str_("s"), np.bytes_(b"b")],
        "triples": [slice(1, None, 2), range(3, 9, 2)],
        "dtypes": [np.dtype("<f4"), np.dtype("<U5"), np.dtype(object), packed, nested],
        "names": [np.float64, int, np.mean, np.log1p],
        "path": Path("a/b"),
        "partial": functools.partial(np.mean, 1, axis=0),
    }


def _random() -> list[Any]:
    kinds = (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox)
    made = [np.random.Generator(kind(1)) for kind in (*kinds, np.random.SFC64)]
    return [*made, np.random.RandomState(1), np.random.RandomState(np.random.PCG64(1))]


def _sparse() -> list[Any]:
    table = np.eye(3) * X[:3]
    kinds = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
    made = [getattr(sp, f"{kind}_{form}")(table) for kind in kinds for form in ("matrix", "array")]
    return [*made, sp.csr_array((4, 0)), sp.coo_array(np.arange(4))]


def _pandas() -> list[Any]:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "n": [1.5, 2.0, np.nan],
            "i": pd.array([1, None, 3], dtype="Int64"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "s": ["x", None, "y"],
            "t": pd.array(["x", None, "y"], dtype="string"),
            "c": pd.Categorical(["u", "v", None], ordered=True),
            "d": pd.to_datetime(["2020-01-01", "2021-01-01", None]),
            "z": pd.to_datetime(["2020-01-01"] * 3).tz_localize("Europe/Berlin"),
        }
    )
    return [
        frame,
        frame["c"],
        frame["z"],
        pd.Series([1, 2], name=3),
        pd.DataFrame({"o": [(1,), 2]}),
    ]


def _polars() -> list[Any]:
    import datetime as dt

    import polars as pl

    frame = pl.DataFrame(
        {
            "n": [1.5, None],
            "i": pl.Series([1, None], dtype=pl.Int16),
            "b": [True, None],
            "s": ["x", None],
            "c": pl.Series(["u", None], dtype=pl.Categorical),
            "e": pl.Series(["u", "v"], dtype=pl.Enum(["u", "v"])),
            "d": [dt.date(2020, 1, 1), None],
            "w": pl.Series([dt.datetime(2020, 1, 1)] * 2, dtype=pl.Datetime("ms", "UTC")),
            "h": [dt.time(1), dt.time(2)],
            "r": [dt.timedelta(1), None],
        }
    )
    return [frame, frame["e"], frame["w"]]


def _trees() -> Iterator[Any]:
    from sklearn import ensemble, tree

    few = {"n_estimators": 2, "random_state": 0}
    yield tree.DecisionTreeClassifier(max_depth=2, random_state=0).fit(X, Y)
    yield tree.DecisionTreeRegressor(max_depth=2).fit(X, np.c_[Y, X[:, 0]])
    yield ensemble.RandomForestClassifier(max_depth=2, **few).fit(X, Y)
    yield ensemble.IsolationForest(max_features=2, **few).fit(X)
    yield ensemble.GradientBoostingClassifier(max_depth=1, **few).fit(X, Y)
    yield ensemble.GradientBoostingClassifier(max_depth=1, **few).fit(X, np.arange(24) % 3)
    table = np.c_[X, np.arange(24) % 4]
    boosting = ensemble.HistGradientBoostingClassifier(
        max_iter=1, min_samples_leaf=3, categorical_features=[3]
    )
    yield boosting.fit(table, Y)
    yield ensemble.HistGradientBoostingRegressor(max_iter=1, loss="quantile", quantile=0.5).fit(
        X, Y
    )
    yield ensemble.AdaBoostClassifier(**few).fit(X, Y)
    yield ensemble.BaggingClassifier(**few).fit(X, Y)


def _machines() -> Iterator[Any]:
    from sklearn import cluster, linear_model, naive_bayes, neighbors, neural_network, svm

    yield svm.SVC(probability=False).fit(X, np.arange(24) % 3)
    yield svm.NuSVR().fit(X, X[:, 0])
    yield svm.OneClassSVM().fit(sp.csr_array(X))
    yield svm.SVC(kernel="precomputed").fit(X @ X.T, Y)
    yield cluster.KMeans(2, n_init=1, random_state=0).fit(X)
    yield cluster.MiniBatchKMeans(2, n_init=1, random_state=0).fit(X)
    yield cluster.BisectingKMeans(3, random_state=0).fit(X)
    for name in ("kd_tree", "ball_tree", "brute"):
        yield neighbors.KNeighborsClassifier(3, algorithm=name, leaf_size=4).fit(X, Y)
    yield neighbors.LocalOutlierFactor(3, novelty=True, metric="manhattan").fit(X)
    metric = {"metric": "mahalanobis", "metric_params": {"VI": np.eye(3)}}
    yield neighbors.NearestNeighbors(algorithm="ball_tree", **metric).fit(X)
    yield neighbors.KernelDensity().fit(X, sample_weight=np.ones(24))
    yield linear_model.LogisticRegression().fit(X, Y)
    yield linear_model.SGDClassifier(max_iter=5, tol=None, random_state=0).fit(X, Y)
    yield linear_model.GammaRegressor().fit(X, Y + 1.0)
    yield naive_bayes.GaussianNB().fit(X, Y)
    yield neural_network.MLPClassifier(
        (4,), solver="adam", max_iter=2, early_stopping=True, random_state=0
    ).fit(X, Y)


def _transformers() -> Iterator[Any]:
    from sklearn import (
        calibration,
        compose,
        decomposition,
        feature_extraction,
        gaussian_process,
        isotonic,
        linear_model,
        pipeline,
        preprocessing,
    )

    text = feature_extraction.text
    yield text.CountVectorizer().fit(TEXTS)
    yield pipeline.make_pipeline(text.TfidfVectorizer(), linear_model.RidgeClassifier()).fit(
        TEXTS, Y
    )
    yield text.HashingVectorizer(n_features=16)
    yield feature_extraction.DictVectorizer().fit([{"a": 1, "b": "x"}])
    yield preprocessing.OneHotEncoder().fit(np.array(TEXTS)[:, None])
    yield preprocessing.OrdinalEncoder().fit(np.array([TEXTS], object).T)
    yield preprocessing.SplineTransformer(4).fit(X)
    yield preprocessing.QuantileTransformer(n_quantiles=5).fit(X)
    yield preprocessing.FunctionTransformer(np.log1p)
    yield preprocessing.MultiLabelBinarizer().fit([("a", "b"), ("b",)])
    yield isotonic.IsotonicRegression().fit(X[:, 0], Y)
    yield gaussian_process.GaussianProcessRegressor().fit(X[:6], Y[:6])
    yield decomposition.PCA(2).fit(X)
    columns = [("s", preprocessing.StandardScaler(), [0, 1]), ("d", "drop", slice(2, 3))]
    yield pipeline.make_pipeline(compose.ColumnTransformer(columns), linear_model.Ridge()).fit(X, Y)
    yield calibration.CalibratedClassifierCV(linear_model.LogisticRegression(), cv=2).fit(X, Y)


def _ours() -> Iterator[Any]:
    from sklearn.linear_model import LogisticRegression, SGDClassifier
    from sklearn.tree import DecisionTreeClassifier

    import letheon
    from letheon.data import Rows, as_ids

    tree = DecisionTreeClassifier(max_depth=2)
    yield letheon.NaiveUnlearner(tree, random_state=0).fit(X, Y)
    yield letheon.NaiveUnlearner(LogisticRegression(), random_state=0).fit(X, Y, ids=IDS)
    yield letheon.SISAClassifier(
        SGDClassifier(max_iter=3), n_shards=2, n_slices=2, random_state=0
    ).fit(X, Y, ids=IDS)
    yield letheon.DaREForestClassifier(n_estimators=3, max_depth=3, random_state=0).fit(
        X, Y, ids=IDS
    )
    yield letheon.DaREForestClassifier(n_estimators=2, subsample=0.5, random_state=0).fit(
        X, np.array(TEXTS)
    )
    yield letheon.DaREForestRegressor(n_estimators=2, max_depth=3, random_state=0).fit(X, X[:, 0])
    yield letheon.InfluenceClassifier(random_state=0).fit(X, Y)
    yield letheon.DeltaGradClassifier(random_state=0).fit(X, Y)
    yield Rows(X, Y, as_ids(IDS), {"slice": Y})
    yield Rows(sp.csr_array(X), None, as_ids(list(range(24))))
    yield letheon.InfluenceClassifier(
        random_state=0, data_free=True, row_norm=10.0, rows="clip"
    ).fit(X, Y)
    places, salts = np.arange(24), np.zeros((24, 16), np.uint8)
    yield {"slots": places, "salts": salts, "places": places, "ranks": np.zeros((24, 0), np.int64)}


def _sums() -> Iterator[Any]:
    """Yield transformers and models made of sums, and pipelines of them on a mixed frame."""
    import pandas as pd

    import letheon
    from letheon import preprocessing, sums
    from letheon.table_pipeline import make_table_pipeline

    table = X.copy()
    table[3, 1] = np.nan
    letters = np.array([list("abcabd" * 4), list("xyxx" * 6)], object).T
    yield from (
        preprocessing.OneHotEncoder(min_frequency=5, drop="first").fit(letters, ids=IDS),
        preprocessing.OrdinalEncoder().fit(letters),
        preprocessing.StandardScaler(random_state=0).fit(table, ids=IDS),
        preprocessing.RobustScaler(random_state=0).fit(table),
        preprocessing.QuantileBinner(random_state=0).fit(X),
        preprocessing.TargetEncoder(random_state=0).fit(letters, Y),
        preprocessing.CountVectorizer().fit(TEXTS, ids=IDS),
        preprocessing.TfidfVectorizer(random_state=0).fit(TEXTS, ids=IDS),
    )
    for strategy in ("mean", "median", "most_frequent", "constant"):
        imputer = preprocessing.SimpleImputer(strategy=strategy, add_indicator=True, random_state=0)
        yield imputer.fit(table)
    yield sums.Ridge(random_state=0).fit(X, X[:, :2], ids=IDS)
    for model in (sums.RidgeClassifier, sums.LinearDiscriminantAnalysis, sums.GaussianNB):
        yield model(random_state=0).fit(X, Y)
    yield sums.PCA(n_components=2, random_state=0).fit(X)
    yield sums.QuadraticDiscriminantAnalysis(random_state=0).fit(X, Y)
    yield sums.RandomFeatures(n_components=4, random_state=0).fit(X)
    counts = np.abs(X).round()
    for name in ("MultinomialNB", "ComplementNB", "BernoulliNB", "CategoricalNB"):
        yield getattr(sums, name)().fit(counts, Y)
    frame = pd.DataFrame({"n": table[:, 1], "c": letters[:, 0], "b": Y > 0})
    forest = letheon.DaREForestClassifier(n_estimators=2, max_depth=2, random_state=0)
    for last in (forest, sums.RidgeClassifier(random_state=0)):
        pipeline = make_table_pipeline(last, frame)
        yield pipeline.set_params(columns__category__min_frequency=3).fit(frame, Y, ids=IDS)
    yield from _sampled(frame)


def _sampled(frame: Any) -> Iterator[Any]:
    """Yield pipelines with samples of people, texts, targets, and a search."""
    from sklearn.decomposition import PCA

    import letheon
    from letheon import preprocessing, sums

    parts = [
        ("text", preprocessing.CountVectorizer(), "t"),
        ("target", preprocessing.TargetEncoder(random_state=0), ["c"]),
        ("bins", preprocessing.QuantileBinner(n_bins=3, random_state=0), ["n"]),
    ]
    columns = preprocessing.ForgetColumnTransformer(parts, sparse_threshold=0)
    last = sums.RidgeClassifier(random_state=0)
    pipeline = letheon.ForgetPipeline([("columns", columns), ("model", last)])
    yield pipeline.fit(frame.assign(n=X[:, 1], t=TEXTS), Y, ids=IDS)
    pca = preprocessing.KeyedSample(PCA(2), n_people=12, random_state=0)
    sampled = letheon.ForgetPipeline([("pca", pca), ("model", last)])
    yield sampled.fit(X, Y, ids=IDS)
    grid = {"model__alpha": [0.1, 1.0]}
    yield letheon.ForgetSearchCV(sampled, grid, cv=2, random_state=0).fit(X, Y, ids=IDS)


def _boosted() -> Iterator[Any]:
    import pandas as pd

    import letheon

    few: dict[str, Any] = {"n_estimators": 2, "max_leaves": 4, "min_samples_leaf": 2}
    few |= {"n_chains": 2, "random_state": 0}
    yield letheon.BoostingClassifier(**few, class_weight="balanced").fit(X, Y, ids=IDS)
    frame = pd.DataFrame({"n": X[:, 0], "c": list("abcd" * 6)})
    three = letheon.BoostingClassifier(**few, skeleton_people=8)
    yield three.fit(frame, np.arange(24) % 3)
    yield letheon.BoostingRegressor(**few, weight_bits=4).fit(
        X, X[:, 0], sample_weight=np.arange(1, 25) / 16
    )
    yield letheon.BoostingRegressor(**few, loss="poisson", y_max=8.0).fit(X, np.abs(X[:, 1]))


def _index() -> Iterator[Any]:
    """Yield vector indices, recommenders and predictors."""
    import letheon
    from letheon import neighbors, recommend, sums
    from letheon.linear import InfluenceClassifier

    key: dict[str, Any] = {"random_state": 0}
    yield neighbors.VectorIndex(**key).fit(X, ids=IDS)
    yield neighbors.VectorIndex(metric="euclidean", **key).fit(X)
    yield neighbors.VectorIndex(metric="inner_product", dtype="int16", step=0.1, **key).fit(X)
    yield neighbors.KNeighborsClassifier(**key).fit(X, np.array(TEXTS), ids=IDS)
    yield neighbors.KNeighborsRegressor(step=0.5, **key).fit(X, X[:, 0])
    histories = sp.csr_array(np.abs(X).round())
    yield recommend.ItemKNN(**key).fit(histories, ids=IDS)
    yield recommend.ItemKNN(similarity="lift", max_items=1, **key).fit(histories)
    yield recommend.EASE(l2=1.0, **key).fit(histories)
    forest = letheon.DaREForestClassifier(n_estimators=2, max_depth=2, **key).fit(X, Y)
    shards = letheon.SISAClassifier(sums.RidgeClassifier(), n_shards=2, **key).fit(X, Y)
    boosting = letheon.BoostingClassifier(n_estimators=2, max_leaves=4, n_chains=2, **key)
    pipeline = letheon.ForgetPipeline(
        [("scale", letheon.preprocessing.StandardScaler(**key)), ("model", sums.Ridge(**key))]
    )
    yield from (
        model.predictor()
        for model in (
            forest,
            shards,
            boosting.fit(X, Y),
            InfluenceClassifier(**key).fit(X, Y),
            pipeline.fit(X, X[:, 0]),
        )
    )


def _deep() -> Iterator[Any]:
    import letheon

    yield letheon.SISANetClassifier(n_shards=2, epochs=1, random_state=0, device="cpu").fit(X, Y)
    yield letheon.FisherNetClassifier(epochs=1, random_state=0, device="cpu").fit(X, Y)


MAKERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: _plain().values(),
    "random": _random,
    "sparse": _sparse,
    "pandas": _pandas,
    "polars": _polars,
    "trees": _trees,
    "machines": _machines,
    "transformers": _transformers,
    "ours": _ours,
    "ours-sums": _sums,
    "ours-boosted": _boosted,
    "ours-index": _index,
    "deep": _deep,
}


def load_seeds(*, deep: bool = True, prefix: str = "") -> dict[str, bytes]:
    """Return the encoded seeds by name, with or without networks."""
    return {
        path.name.removesuffix(".z"): zlib.decompress(path.read_bytes())
        for path in sorted(SEEDS.glob(f"{prefix}*.z"))
        if deep or not path.name.startswith("deep")
    }


def main() -> None:
    """Write all seeds."""
    SEEDS.mkdir(parents=True, exist_ok=True)
    for old in SEEDS.glob("*.z"):
        old.unlink()
    for kind, make in MAKERS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i, value in enumerate(make()):
                name = f"{kind}-{i:02}-{type(value).__name__}"
                (SEEDS / f"{name}.z").write_bytes(zlib.compress(state.encode(value), 9))


if __name__ == "__main__":
    main()
