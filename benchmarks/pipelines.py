"""Benchmarks of pipelines that forget: time of one removal against a refit of scikit-learn's.

Run ``python benchmarks/pipelines.py`` (about 20 minutes on one core) or, for a first look,
``python benchmarks/pipelines.py --quick``, or only some sections: ``--only ridge,text``. Every
ratio compares two processor times of the same run, with one thread, so that other work on the
machine matters less. Results go to ``benchmarks/results``.
"""

import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import sklearn.compose
import sklearn.decomposition
import sklearn.ensemble
import sklearn.feature_extraction.text
import sklearn.impute
import sklearn.linear_model
import sklearn.naive_bayes
import sklearn.pipeline
import sklearn.preprocessing
import threadpoolctl
import typer
from sklearn.base import clone
from sklearn.metrics import r2_score, roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks._data import load_data, load_split, make_synthetic_split
from benchmarks._pipeline_data import MixedTable, load_mixed, make_numbers, make_texts
from benchmarks._pipeline_frequency import N_ROWS, ROWS_PER_CATEGORY, measure_frequencies
from benchmarks._report import BenchmarkReport, Table, TargetCheck, time_call
from letheon import (
    DaREForestClassifier,
    ForgetPipeline,
    ForgetSearchCV,
    InfluenceClassifier,
    convert,
)
from letheon.ledger.certificates.claims import certificate_account
from letheon.ledger.certificates.facts import collect_facts
from letheon.ledger.keys.signing import Signer, sign_statement
from letheon.preprocessing import (
    ForgetColumnTransformer,
    KeyedSample,
    OneHotEncoder,
    SimpleImputer,
    StandardScaler,
    TfidfVectorizer,
)
from letheon.sums import MultinomialNB, Ridge, RidgeClassifier

RESULTS = Path(__file__).resolve().parent / "results"
# A statement of the right shape; a request fills in its own facts.
STATEMENT = RESULTS.parents[1] / "tests" / "data" / "certificates" / "example.json"


# How often a fill value changes depends on the seed: near a border of the grid it changes often.
N_SEEDS = 5


class PipelineScale(NamedTuple):
    """Sizes and repetitions of a run."""

    census: int
    adult: int
    numbers: tuple[int, int]
    texts: int
    search: int
    removals: int
    accuracy: int
    frequency: int
    digits: int


FULL = PipelineScale(
    100_000, 26_000, (1_000_000, 100), 20_000, 100_000, 400, 8_000, 100_000, 60_000
)
QUICK = PipelineScale(4_000, 3_000, (20_000, 20), 1_500, 6_000, 40, 1_500, 4_000, 1_200)


class PersonRemovals(NamedTuple):
    """Processor times of removals of one person, in seconds."""

    seconds: list[float]
    n_rebuilt: int

    @property
    def mean(self) -> float:
        """Mean time."""
        return float(np.mean(self.seconds))

    @property
    def cells(self) -> tuple[Any, ...]:
        """Mean, median, 99th percentile in milliseconds, and number of rebuilding requests."""
        points = [1000 * float(np.percentile(self.seconds, q)) for q in (50, 99)]
        return (*(round(value, 3) for value in (1000 * self.mean, *points)), self.n_rebuilt)


TIME_COLUMNS = ("mean, ms", "p50, ms", "p99, ms", "requests that rebuilt")


def time_fit(fit: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a fit and its seconds of processor time."""
    fitted, seconds = time_call(fit)
    return fitted, seconds.cpu


def time_removals(
    model: Any, ids: Iterable[Any], finish: Callable[[Any], Any] = lambda _: None
) -> PersonRemovals:
    """Forget one person at a time; `finish` is part of every request, such as a solve."""
    return time_side_by_side([model], ids, finish)[0]


def time_side_by_side(
    models: list[Any], ids: Iterable[Any], finish: Callable[[Any], Any] = lambda _: None
) -> list[PersonRemovals]:
    """Forget the same people in several models, in turn.

    The models then meet the same load of the machine, and none finds its data in the cache of the
    processor, as in a service.
    """
    times = [PersonRemovals([], 0) for _ in models]
    for person in ids:
        for k, model in enumerate(models):
            start = time.process_time()
            receipt = model.forget([person])
            finish(model)
            times[k].seconds.append(time.process_time() - start)
            is_rebuilt = bool({"models", "steps", "columns"} & receipt.rebuilt.keys())
            times[k] = times[k]._replace(n_rebuilt=times[k].n_rebuilt + is_rebuilt)
    return times


def check_exact(model: Any, fresh: Any, data: tuple[Any, Any], n_removed: int) -> TargetCheck:
    """Compare the digest after the first `n_removed` people with that of a fresh fit."""
    X, y = data
    keep = np.arange(n_removed, len(y))
    rows = X.iloc[keep] if hasattr(X, "iloc") else X[keep]
    fresh.fit(rows, y[keep], ids=keep)
    equal = model.digest() == fresh.digest()
    return TargetCheck("digest equals a fresh fit", str(equal), "True", equal)


def at_least(what: str, ratio: float, least: float) -> TargetCheck:
    """Return the check of a speed-up."""
    return TargetCheck(what, f"{ratio:,.0f}x", f">= {least:,.0f}x", ratio >= least)


def at_most(what: str, value: float, most: float) -> TargetCheck:
    """Return the check of a ratio."""
    return TargetCheck(what, f"{value:.3g}", f"<= {most:g}", value <= most)


def plain_columns(table: MixedTable, *, scale: bool) -> Any:
    """Return scikit-learn's usual preprocessing of a mixed frame."""
    numbers: list[Any] = [sklearn.impute.SimpleImputer()]
    if scale:
        numbers.append(sklearn.preprocessing.StandardScaler())
    texts = sklearn.pipeline.make_pipeline(
        sklearn.impute.SimpleImputer(strategy="most_frequent"),
        sklearn.preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    return sklearn.compose.ColumnTransformer(
        [
            ("numbers", sklearn.pipeline.make_pipeline(*numbers), table.numbers),
            ("texts", texts, table.texts),
        ]
    )


def stable_columns(table: MixedTable, *, scale: bool) -> ForgetColumnTransformer:
    """Return the same preprocessing, made to forget."""
    numbers: list[Any] = [("fill", SimpleImputer(random_state=1))]
    if scale:
        numbers.append(("scale", StandardScaler(random_state=2)))
    texts = [
        ("fill", SimpleImputer(strategy="most_frequent", random_state=3)),
        ("encode", OneHotEncoder(handle_unknown="ignore", sparse_output=False)),
    ]
    return ForgetColumnTransformer(
        [
            ("numbers", ForgetPipeline(numbers), table.numbers),
            ("texts", ForgetPipeline(texts), table.texts),
        ]
    )


def forest_section(report: BenchmarkReport, scale: PipelineScale) -> None:
    """Mixed frame to a DaRE forest: one person, next to the forest alone and to a refit."""
    table = load_mixed("census", scale.census)
    plain = sklearn.pipeline.make_pipeline(
        plain_columns(table, scale=True), sklearn.ensemble.RandomForestClassifier(random_state=0)
    )
    _, refit = time_fit(lambda: plain.fit(table.X, table.y))
    ids = np.arange(len(table.y))

    def make() -> ForgetPipeline:
        forest = DaREForestClassifier(n_estimators=100, random_state=0)
        return ForgetPipeline([("columns", stable_columns(table, scale=False)), ("model", forest)])

    model, fit = time_fit(lambda: make().fit(table.X, table.y, ids=ids))
    matrix = stable_columns(table, scale=False).fit(table.X, table.y, ids=ids).transform(table.X)
    alone = DaREForestClassifier(n_estimators=100, random_state=0).fit(matrix, table.y, ids=ids)
    scores = [
        roc_auc_score(table.test_y, m.predict_proba(table.test_X)[:, 1]) for m in (plain, model)
    ]
    whole, single = time_side_by_side([model, alone], range(scale.removals))
    rows = [
        ("pipeline", *whole.cells, round(refit / whole.mean)),
        ("forest alone", *single.cells, round(refit / single.mean)),
    ]
    note = (
        f"Census, {len(ids):,} rows, {table.X.shape[1]} columns, real data: {table.is_real}. Refit "
        f"of scikit-learn's pipeline with a scaler and 100 trees: {refit:.1f} s; fit of this "
        f"pipeline: {fit:.1f} s. AUC {scores[0]:.4f} and {scores[1]:.4f}."
    )
    report.add(
        Table("Imputer, one-hot, DaRE", ("model", *TIME_COLUMNS, "refit / mean"), rows, note),
        [
            at_most("pipeline / forest alone, mean of one removal", whole.mean / single.mean, 2.0),
            at_least("refit / removal, Census to DaRE", refit / whole.mean, 5_000),
            check_exact(model, make(), (table.X, table.y), scale.removals),
        ],
    )


def make_certifier() -> Callable[[Any], bytes]:
    """Return a function that makes the statement about a removal and signs it.

    Files, the database and the log of a ledger are not part of it.
    """
    template = json.loads(STATEMENT.read_text())
    signer = Signer.from_seed(bytes(32))
    training = template["predicate"]["method"]["trainingRandomness"]
    removed = 0

    def certify(model: Any) -> bytes:
        nonlocal removed
        removed += 1
        facts = collect_facts(
            guarantee_before=model.guarantee_,
            after=model,
            receipt=None,
            rows=model.fitted_.rows,
            kind="erase",
            seconds=1.0,
            retrain_seconds=None,
            training=training,
            removed=1,
            since_retrain=removed,
        )
        predicate = template["predicate"]
        names = ("method", "execution", "guarantee", "measurements", "notClaimed")
        own = {name: facts[name] for name in names}
        own["guarantee"]["accounting"] = certificate_account(own["guarantee"]["accounting"])
        return sign_statement(template | {"predicate": predicate | own}, signer)

    return certify


def influence_section(report: BenchmarkReport, scale: PipelineScale) -> None:
    """Mixed frame to a certified linear model; the signed certificate is part of a request."""
    table = load_mixed("adult", scale.adult)
    plain = sklearn.pipeline.make_pipeline(
        plain_columns(table, scale=True), sklearn.linear_model.LogisticRegression(max_iter=1000)
    )
    # The first fit also loads libraries.
    refit = min(time_fit(lambda: plain.fit(table.X, table.y))[1] for _ in range(3))

    def make(seed: int) -> ForgetPipeline:
        columns = stable_columns(table, scale=True)
        columns.set_params(numbers__fill__random_state=seed)
        classifier = InfluenceClassifier(l2=1e-4, sigma=0.1, random_state=0)
        pipeline = ForgetPipeline([("columns", columns), ("model", classifier)])
        return pipeline.fit(table.X, table.y, ids=np.arange(len(table.y)))

    model, fit = time_fit(lambda: make(0))
    plain_auc = roc_auc_score(table.test_y, plain.predict_proba(table.test_X)[:, 1])
    auc = roc_auc_score(table.test_y, model.predict_proba(table.test_X)[:, 1])
    parts = [
        time_removals(make(seed) if seed else model, range(scale.removals), make_certifier())
        for seed in range(N_SEEDS)
    ]
    times = PersonRemovals(
        [second for part in parts for second in part.seconds],
        sum(part.n_rebuilt for part in parts),
    )
    note = (
        f"{N_SEEDS} seeds of the rounding, {scale.removals} requests each, with a signed statement "
        f"per request. Adult, {len(table.y):,} rows, real data: {table.is_real}. Refit "
        f"{refit:.2f} s, fit of this pipeline {fit:.2f} s. AUC {plain_auc:.4f} and {auc:.4f}. "
        f"After the requests: {model.guarantee_}."
    )
    rows = [
        (name, *part.cells, round(refit / part.mean))
        for name, part in [("all", times), *((f"seed {k}", part) for k, part in enumerate(parts))]
    ]
    report.add(
        Table(
            "Imputer, scaler, one-hot, Influence",
            ("model", *TIME_COLUMNS, "refit / mean"),
            rows,
            note,
        ),
        [at_least("refit / removal, Adult to Influence", refit / times.mean, 40)],
    )


def ridge_section(report: BenchmarkReport, scale: PipelineScale) -> None:
    """Scaler and ridge regression on many rows: fit, memory, one removal with a solve."""
    n_rows, n_columns = scale.numbers
    X, y = make_numbers(n_rows + 20_000, n_columns)
    test_X, test_y, X, y = X[n_rows:], y[n_rows:], X[:n_rows].copy(), y[:n_rows]
    plain = sklearn.pipeline.make_pipeline(
        sklearn.preprocessing.StandardScaler(), sklearn.linear_model.Ridge()
    )
    _, refit = time_fit(lambda: plain.fit(X, y))

    def make() -> ForgetPipeline:
        return ForgetPipeline(
            [("scale", StandardScaler(random_state=1)), ("model", Ridge(random_state=2))]
        )

    model, fit = time_fit(lambda: make().fit(X, y))
    times = time_removals(model, range(scale.removals), lambda m: m["model"].coef_)
    exact = check_exact(model, make(), (X, y), scale.removals)
    scores = [r2_score(test_y, m.predict(test_X)) for m in (plain, model)]
    del model
    tracemalloc.start()
    held_model = make().fit(X, y)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del held_model
    note = (
        f"{X.shape[0]:,} x {X.shape[1]}. Refit of scikit-learn's pipeline {refit:.2f} s, fit "
        f"{fit:.2f} s. Memory of the fitted pipeline {held / X.nbytes:.2f} and peak of its fit "
        f"{peak / X.nbytes:.2f} times the rows. R2 {scores[0]:.6f} and {scores[1]:.6f}."
    )
    rows = [("pipeline, one solve per request", *times.cells, round(refit / times.mean))]
    report.add(
        Table("Scaler, Ridge", ("model", *TIME_COLUMNS, "refit / mean"), rows, note),
        [
            at_least("refit / removal, scaler to Ridge", refit / times.mean, 8_000),
            at_most("fit / scikit-learn's fit", fit / refit, 3.0),
            at_most("memory of the fitted pipeline / rows", held / X.nbytes, 1.2),
            at_most("loss of R2", scores[0] - scores[1], 0.001),
            exact,
        ],
    )


def text_section(report: BenchmarkReport, scale: PipelineScale) -> None:
    """Texts to naive Bayes and to ridge classification."""
    texts, y = make_texts(scale.texts)
    cases: dict[str, tuple[int | None, Any, Any, int]] = {
        "MultinomialNB": (None, sklearn.naive_bayes.MultinomialNB(), MultinomialNB, 50),
    }
    for n_terms in (1_000, 2_000):
        plain_ridge = sklearn.linear_model.RidgeClassifier()
        make_ridge = partial(RidgeClassifier, random_state=2)
        cases[f"RidgeClassifier, {n_terms:,} terms"] = (n_terms, plain_ridge, make_ridge, 20)
    rows, checks = [], []
    for name, (most, plain_model, make_model, least) in cases.items():
        vectoriser = sklearn.feature_extraction.text.TfidfVectorizer(max_features=most)
        plain = sklearn.pipeline.make_pipeline(vectoriser, plain_model)
        _, refit = time_fit(partial(plain.fit, texts, y))

        def make(most: int | None = most, make_model: Any = make_model) -> ForgetPipeline:
            words = TfidfVectorizer(max_features=most, random_state=1)
            return ForgetPipeline([("words", words), ("model", make_model())])

        model, fit = time_fit(partial(make().fit, texts, y))
        times = time_removals(model, range(scale.removals), lambda m: m.predict(texts[:1]))
        rows.append((name, round(refit, 2), round(fit, 2), *times.cells, round(refit / times.mean)))
        checks.append(at_least(f"refit / removal, tf-idf to {name}", refit / times.mean, least))
        checks.append(check_exact(model, make(), (texts, y), scale.removals))
    columns = ("model", "refit, s", "fit, s", *TIME_COLUMNS, "refit / mean")
    note = f"{scale.texts:,} texts from a Zipf law, about 100 words each; one predict per request."
    report.add(Table("Texts", columns, rows, note), checks)


def sample_section(report: BenchmarkReport, scale: PipelineScale) -> None:
    """Keyed samples: PCA on a sample of people, and a search on a sample of people."""
    X, y = make_numbers(scale.search, 30)
    labels = (y > np.median(y)).astype(int)
    n_people = scale.search // 20
    ids = np.arange(len(y))

    def make_pca() -> ForgetPipeline:
        pca = KeyedSample(
            sklearn.decomposition.PCA(10, svd_solver="full"), n_people=n_people, random_state=1
        )
        forest = DaREForestClassifier(n_estimators=20, max_depth=8, random_state=2)
        return ForgetPipeline([("pca", pca), ("model", forest)])

    def make_search() -> ForgetSearchCV:
        forest = DaREForestClassifier(n_estimators=20, random_state=2)
        return ForgetSearchCV(forest, {"max_depth": [4, 8]}, n_people=n_people, random_state=3)

    rows, checks = [], []
    for name, make in (("KeyedSample(PCA), DaRE", make_pca), ("ForgetSearchCV, DaRE", make_search)):
        _, refit = time_fit(partial(make().fit, X, labels, ids=ids))
        model = make().fit(X, labels, ids=ids)
        n_removed = min(scale.removals, 100)
        times = time_removals(model, range(n_removed))
        checks.append(at_most(f"one person / refit, mean, {name}", times.mean / refit, 0.08))
        checks.append(check_exact(model, make(), (X, labels), n_removed))
        later = np.arange(n_removed, n_removed + 50)
        _, batch = time_fit(partial(model.forget, later))
        rows.append((name, round(refit, 2), *times.cells, round(batch / refit, 3)))
    columns = ("model", "refit, s", *TIME_COLUMNS, "batch of 50 / refit")
    note = f"{scale.search:,} people, n_people = {n_people:,}; the refit is one of this estimator."
    report.add(Table("Samples of people", columns, rows, note), checks)


def load_tables(n_rows: int) -> list[MixedTable]:
    """Return seven tables: three mixed frames, three of numbers, one synthetic."""
    tables = [load_mixed(name, n_rows) for name in ("adult", "census", "diabetes")]
    higgs = load_split("higgs") or make_synthetic_split()
    tables.append(
        _split_numbers("higgs", higgs.X, higgs.y, n_rows, load_split("higgs") is not None)
    )
    for name in ("covtype", "mnist"):
        data = load_data(name)
        X, y = data.X[: n_rows + 5_000], data.y[: n_rows + 5_000]
        label = np.bincount(y.astype(int)).argmax()
        tables.append(_split_numbers(name, X, y == label, n_rows, data.real))
    X, target = make_numbers(n_rows + 5_000, 30)
    tables.append(_split_numbers("synthetic", X, target > np.median(target), n_rows, False))
    return tables


def _split_numbers(name: str, X: Any, y: Any, n_rows: int, is_real: bool) -> MixedTable:
    order = np.random.default_rng(0).permutation(len(y))
    n_rows = min(n_rows, len(y) * 2 // 3)
    frame = pd.DataFrame(X[order], columns=[f"x{j}" for j in range(X.shape[1])])
    labels = y[order].astype(np.int64)
    train, test = frame[:n_rows], frame[n_rows:].reset_index(drop=True)
    return MixedTable(name, train, labels[:n_rows], test, labels[n_rows:], is_real)


def accuracy_section(report: BenchmarkReport, scale: PipelineScale) -> None:
    """AUC of scikit-learn's preprocessing and models, and of the ones that forget."""
    rows, worst = [], {"transformers": -1.0, "RidgeClassifier": -1.0, "forest": -1.0}
    for table in load_tables(scale.accuracy):
        regression = sklearn.linear_model.LogisticRegression(max_iter=300)
        plain, ours = plain_columns(table, scale=True), stable_columns(table, scale=True)
        aucs = [
            _auc(sklearn.pipeline.make_pipeline(columns, clone(regression)), table)
            for columns in (plain, ours)
        ]
        cells = [f"{aucs[0]:.4f} / {aucs[1]:.4f}"]
        worst["transformers"] = max(worst["transformers"], aucs[0] - aucs[1])
        forest = sklearn.ensemble.RandomForestClassifier(
            100, min_samples_leaf=5, random_state=0, n_jobs=1
        )
        for name, model in (
            ("RidgeClassifier", sklearn.linear_model.RidgeClassifier()),
            ("forest", forest),
        ):
            pipeline = sklearn.pipeline.make_pipeline(plain, model)
            twin, _ = convert(pipeline, return_report=True, random_state=0)
            pair = _auc(clone(pipeline), table), _auc(twin, table)
            worst[name] = max(worst[name], pair[0] - pair[1])
            cells.append(f"{pair[0]:.4f} / {pair[1]:.4f}")
        kind = "real" if table.is_real else "synthetic"
        rows.append((table.name, kind, len(table.y), *cells))
    columns = (
        "data",
        "kind",
        "rows",
        "transformers, logistic",
        "RidgeClassifier",
        "forest, min leaf 5",
    )
    note = "AUC on test rows: scikit-learn / letheon. The models of the last two are converted."
    checks = [
        at_most("largest loss of AUC, transformers", worst["transformers"], 0.001),
        at_most("largest loss of AUC, converted RidgeClassifier", worst["RidgeClassifier"], 0.003),
        at_most("largest loss of AUC, converted forest", worst["forest"], 0.003),
    ]
    report.add(Table("Accuracy", columns, rows, note), checks)


def _auc(model: Any, table: MixedTable) -> float:
    model.fit(table.X, table.y)
    if hasattr(model, "predict_proba"):
        scores = model.predict_proba(table.test_X)[:, 1]
    else:
        scores = model.decision_function(table.test_X)
    return float(roc_auc_score(table.test_y, scores))


def frequency_section(report: BenchmarkReport, scale: PipelineScale) -> None:
    """How often the removal of one person changes a published statistic."""
    results = measure_frequencies(scale.frequency)
    rows = [(*part[:3], f"{part.share:.5f}", f"{part.stated:.5f}", part.source) for part in results]
    columns = ("statistic", "removals", "changes", "per removal", "stated", "formula")
    note = (
        f"{N_ROWS:,} rows; dithers are redrawn for each removal. Categories of a target encoding "
        f"have {ROWS_PER_CATEGORY} rows."
    )
    worst = max(results, key=lambda part: part.share / part.stated)
    check = TargetCheck(
        "frequency of changes over the stated probability, worst statistic",
        f"{worst.share / worst.stated:.2f} ({worst.name})",
        "<= 1, and 3 standard errors",
        all(part.is_within for part in results),
    )
    report.add(Table("Frequency of changes", columns, rows, note), [check])


def head_section(report: BenchmarkReport, scale: PipelineScale) -> None:
    """An exact ridge head on a frozen network, next to fine-tuning the whole network."""
    from benchmarks._pipeline_head import compare_heads

    head, accuracy, tuned, is_real = compare_heads(scale.digits, 5)
    times = time_removals(head, range(scale.removals), lambda m: m._finish_pending())
    rows = [("exact head", *times.cells, f"{accuracy:.2%}", f"{tuned:.2%}")]
    note = (
        f"{scale.digits:,} digits, real data: {is_real}. A convolutional network is trained on "
        "half of them; the head (ridge, 256 random features) on the other half. Fine-tuning "
        "trains the whole network on the other half. The solve is part of every request."
    )
    report.add(
        Table("Exact head", ("model", *TIME_COLUMNS, "accuracy", "fine-tuning"), rows, note),
        [
            at_most("points below fine-tuning", 100 * (tuned - accuracy), 0.5),
            at_most("one person, mean, ms", 1000 * times.mean, 5.0),
        ],
    )


SECTIONS = {
    "head": head_section,
    "accuracy": accuracy_section,
    "frequency": frequency_section,
    "forest": forest_section,
    "influence": influence_section,
    "ridge": ridge_section,
    "text": text_section,
    "sample": sample_section,
}


def main(
    quick: bool = typer.Option(False, help="Small numbers, as a smoke test."),
    only: str = typer.Option("", help="Sections to run, separated by commas."),
) -> None:
    """Measure and write the report."""
    scale = QUICK if quick else FULL
    name = "pipelines_quick" if quick else "pipelines"
    chosen = only.split(",") if only else list(SECTIONS)
    report = BenchmarkReport("Pipelines that forget", dict(scale._asdict()), file=RESULTS / name)
    with threadpoolctl.threadpool_limits(1):
        for section in chosen:
            SECTIONS[section](report, scale)
    raise typer.Exit(0 if report.passed or quick else 1)


if __name__ == "__main__":
    typer.run(main)
