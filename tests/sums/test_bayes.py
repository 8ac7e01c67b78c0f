"""Naive Bayes: fresh fits, scikit-learn's probabilities, changes of columns, planted bugs."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.naive_bayes as theirs
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks as sklearn_checks

import letheon
from letheon import ForgetPipeline
from letheon.checks import parametrize_with_checks
from letheon.data import SlotRows, as_ids, hold_target
from letheon.delta import Block, Delta, ReplacedRows, RowSource, take_block
from letheon.exceptions import EmptyModelError, InvalidParameterError
from letheon.preprocessing import CountVectorizer, TfidfVectorizer
from letheon.sums import BernoulliNB, CategoricalNB, ComplementNB, MultinomialNB
from letheon.sums import _bayes as module
from letheon.sums import _class_sums as sums_module
from letheon.sums._class_sums import FeatureSums

MODELS = [MultinomialNB(), ComplementNB(norm=True), BernoulliNB(), CategoricalNB()]
# The checks ask for categories that only a forgotten row has.
HONEST = [*MODELS[:3], CategoricalNB(min_categories=1000)]


@parametrize_with_checks(HONEST)
def test_checks_of_forgetting(estimator: Any, check: Any) -> None:
    check(estimator)


@sklearn_checks(MODELS)
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


def make_rows(n: int = 60, *, seed: int = 0, n_columns: int = 5) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    y = np.array(["ash", "elm", "oak"])[rng.integers(0, 3, n)]
    X = rng.poisson(1.0 + (y == "elm")[:, None] * np.arange(n_columns), (n, n_columns))
    return X.astype(float), y, rng.integers(0, 4, n).astype(float)


def twin(model: Any, **settings: Any) -> Any:
    names = theirs.__dict__[type(model).__name__]
    return names(**{**model.get_params(), **settings})


# Values


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("has_weights", [False, True])
def test_probabilities_equal_those_of_scikit_learn(model: Any, has_weights: bool) -> None:
    X, y, weights = make_rows()
    chosen = {"sample_weight": weights} if has_weights else {}
    for settings_ in ({}, {"fit_prior": False}, {"class_prior": [0.5, 0.2, 0.3]}, {"alpha": 0.1}):
        ours = copy.deepcopy(model).set_params(**settings_).fit(X, y, **chosen)
        other = twin(model, **settings_).fit(X, y, **chosen)
        for method in ("predict_proba", "predict_log_proba", "predict_joint_log_proba"):
            np.testing.assert_allclose(
                getattr(ours, method)(X), getattr(other, method)(X), rtol=1e-9, atol=1e-9
            )
        assert ours.predict(X).tolist() == other.predict(X).tolist()
        for name in ("class_count_", "class_log_prior_", "classes_"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(other, name))
        name = "category_count_" if isinstance(model, CategoricalNB) else "feature_count_"
        for mine, yours in zip(getattr(ours, name), getattr(other, name), strict=True):
            np.testing.assert_array_equal(mine, yours)


def test_other_attributes_of_scikit_learn() -> None:
    X, y, _ = make_rows()
    ours, other = CategoricalNB(min_categories=9).fit(X, y), twin(CategoricalNB(), min_categories=9)
    np.testing.assert_array_equal(ours.n_categories_, other.fit(X, y).n_categories_)
    np.testing.assert_array_equal(
        ComplementNB().fit(X, y).feature_all_, theirs.ComplementNB().fit(X, y).feature_all_
    )


@pytest.mark.parametrize("model", MODELS[:3], ids=str)
def test_sparse_and_dense_rows_give_the_same_sums(model: Any) -> None:
    X, y, weights = make_rows()
    dense = copy.deepcopy(model).fit(X / 3, y, sample_weight=weights)
    sparse = copy.deepcopy(model).fit(sp.csr_array(X / 3), y, sample_weight=weights)
    np.testing.assert_array_equal(dense.feature_count_, sparse.feature_count_)
    np.testing.assert_allclose(
        dense.predict_proba(X), sparse.predict_proba(sp.csr_array(X)), rtol=1e-12
    )


# Fresh fits


LABELS = st.sampled_from(["ash", "elm", "a longer label"])
VALUES = st.sampled_from([0.0, 1.0, 2.0, 7.0, 0.1, 1e-9, 1e5])
ROWS = st.lists(st.tuples(st.lists(VALUES, min_size=3, max_size=3), LABELS), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    rows=ROWS,
    more=ROWS,
    leaving=st.lists(st.integers(0, 15), max_size=6),
    model=st.sampled_from(MODELS),
    has_weights=st.booleans(),
)
def test_any_sequence_equals_a_fresh_fit(
    rows: Any, more: Any, leaving: list[int], model: Any, has_weights: bool
) -> None:
    if isinstance(model, CategoricalNB):
        rows, more = ([([x % 50 for x in X], y) for X, y in part] for part in (rows, more))
    every = [*rows, *more]
    weights = np.arange(1, len(every) + 1) / 7

    def train(estimator: Any, method: str, places: list[int]) -> Any:
        chosen = {"sample_weight": weights[places]} if has_weights else {}
        X, y = [every[k][0] for k in places], np.array([every[k][1] for k in places])
        return getattr(estimator, method)(X, y, ids=places, **chosen)

    current = copy.deepcopy(model)
    train(current, "fit", list(range(len(rows))))
    train(current, "learn", list(range(len(rows), len(every))))
    remaining = list(range(len(every)))
    for person in leaving:
        if person in remaining and len(remaining) > 1:
            current.forget([person])
            remaining.remove(person)
    fresh = train(copy.deepcopy(model), "fit", remaining)
    assert current.digest() == fresh.digest()
    assert current.classes_.dtype == fresh.classes_.dtype
    X = [[0.0, 0.0, 0.0]]
    np.testing.assert_array_equal(current.predict_proba(X), fresh.predict_proba(X))


def test_order_does_not_matter_for_the_sums() -> None:
    X, y, weights = make_rows()
    first = MultinomialNB().fit(X / 7, y, sample_weight=weights)
    second = MultinomialNB().fit(X[::-1] / 7, y[::-1], sample_weight=weights[::-1])
    np.testing.assert_array_equal(first.sums_.values, second.sums_.values)


# Changes of columns, as in a pipeline


def make_source(X: Any, y: Any) -> RowSource:
    return RowSource(SlotRows(X.copy(), hold_target(y), as_ids(list(range(X.shape[0])))))


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_columns_move_appear_and_change(model: Any, is_sparse: bool) -> None:
    if is_sparse and isinstance(model, CategoricalNB):
        pytest.skip("takes dense rows")
    rng = np.random.default_rng(1)
    X, y, _ = make_rows(30)
    layout = np.array([3, -1, 0, 1, 4, -1])
    new = np.where(layout < 0, rng.integers(0, 5, (30, 6)), X[:, layout])
    new[:, 3] += rng.integers(0, 2, 30)  # a changed column
    rows = np.array([4, 9])  # rank 4 and 9 after the removal of row 0
    new[rows + 1, 2] += 3
    form: Any = sp.csr_array if is_sparse else np.array

    fitted = copy.deepcopy(model)._fit_source(make_source(form(X), y))
    before, after = make_source(form(X[1:]), y[1:]), make_source(form(new[1:]), y[1:])
    delta = Delta(
        removed=take_block(make_source(form(X), y).rows, np.array([0])),
        replaced=ReplacedRows(rows, before.take(rows), after.take(rows)),
        columns=(3,),
        layout=layout,
        before=before,
        source=after,
    )
    plan = fitted._prepare_delta(delta)
    fitted._apply_plan(plan)
    fresh = copy.deepcopy(model)._fit_source(make_source(form(new[1:]), y[1:]))
    assert fitted.digest() == fresh.digest()
    assert plan.work < 1


@pytest.mark.parametrize("vectorizer", [TfidfVectorizer(random_state=0), CountVectorizer(min_df=2)])
def test_pipelines_of_texts(vectorizer: Any) -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"w{k:03d}" for k in range(300)])
    shares = 1 / np.arange(1, 301)
    texts = [" ".join(rng.choice(words, 25, p=shares / shares.sum())) for _ in range(120)]
    y = rng.integers(0, 2, 120)
    model = ForgetPipeline([("text", vectorizer), ("model", MultinomialNB())]).fit(
        texts[:100], y[:100]
    )
    model.learn(texts[100:], y[100:], ids=list(range(100, 120)))
    assert np.mean([model.forget([person]).work for person in range(0, 60, 3)]) < 0.5
    rest = [k for k in range(120) if k >= 60 or k % 3]
    fresh = ForgetPipeline([("text", vectorizer), ("model", MultinomialNB())])
    fresh.fit([texts[k] for k in rest], y[rest], ids=rest)
    assert model.digest() == fresh.digest()
    np.testing.assert_array_equal(model.predict_proba(texts), fresh.predict_proba(texts))


WORDS = st.lists(st.sampled_from(["ash", "elm", "fir", "oak", "yew"]), max_size=5).map(" ".join)
VECTORIZERS: list[dict[str, Any]] = [
    {},
    {"min_df": 2, "norm": None},
    {"max_features": 2, "norm": "l1"},
    {"max_df": 0.6, "sublinear_tf": True},
]


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(WORDS, min_size=4, max_size=12),
    n_first=st.integers(2, 12),
    leaving=st.lists(st.integers(0, 11), max_size=6, unique=True),
    parameters=st.sampled_from(VECTORIZERS),
    model=st.sampled_from(MODELS[:3]),
)
def test_any_sequence_of_a_pipeline_equals_a_fresh_fit(
    texts: list[str], n_first: int, leaving: list[int], parameters: dict[str, Any], model: Any
) -> None:
    y = np.arange(len(texts)) % 3

    def make() -> ForgetPipeline:
        words = TfidfVectorizer(random_state=5, **parameters)
        return ForgetPipeline([("text", words), ("model", copy.deepcopy(model))])

    def train(pipeline: Any, method: str, places: list[int]) -> Any:
        rows = [texts[k] for k in places]
        return getattr(pipeline, method)(rows, y[places], ids=places)

    first, rest = list(range(len(texts)))[:n_first], list(range(len(texts)))[n_first:]
    try:
        current = train(make(), "fit", first)
        if rest:
            train(current, "learn", rest)
    except ValueError:
        reject()
    remaining = first + rest
    for person in leaving:
        if person in remaining:
            try:
                current.forget([person])
            except EmptyModelError:
                continue
            remaining.remove(person)
    assert current.digest() == train(make(), "fit", remaining).digest()


def test_a_vanishing_column_needs_no_pass_over_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"common only{k}" for k in range(50)]
    model = ForgetPipeline([("text", CountVectorizer()), ("model", MultinomialNB())])
    model.fit(texts, np.arange(50) % 2)
    sizes = []
    transform = CountVectorizer._transform_training

    def record(self: CountVectorizer, published: Any, block: Any) -> Any:
        sizes.append(block.n_rows)
        return transform(self, published, block)

    monkeypatch.setattr(CountVectorizer, "_transform_training", record)
    model.forget([7])
    assert model["text"].get_feature_names_out().size == 50
    assert max(sizes) == 1


# Errors and files


def test_wrong_input_is_refused() -> None:
    X, y, _ = make_rows()
    with pytest.raises(ValueError, match="Negative values"):
        MultinomialNB().fit(-X, y)
    with pytest.raises(ValueError, match="Number of priors"):
        MultinomialNB(class_prior=[0.5, 0.5]).fit(X, y)
    with pytest.raises(ValueError, match="alpha"):
        MultinomialNB(alpha=[1.0, 2.0]).fit(X, y)
    with pytest.raises(ValueError, match="alpha"):
        MultinomialNB(alpha=-1.0).fit(X, y)
    with pytest.raises(ValueError, match="may exceed"):
        MultinomialNB().fit(X * 1e12, y)
    with pytest.raises(ValueError, match="min_categories"):
        CategoricalNB(min_categories=[1, 2]).fit(X, y)
    with pytest.raises(IndexError, match="category 50"):
        CategoricalNB().fit(X, y).predict([[50.0] * 5])
    with pytest.raises(ValueError, match="threshold < 0"):
        BernoulliNB(binarize=-1.0).fit(sp.csr_array(X), y)


def test_a_removal_that_leaves_no_valid_fit_is_refused() -> None:
    model = MultinomialNB(class_prior=[0.5, 0.5]).fit([[1.0], [2.0], [3.0]], [0, 1, 1])
    before = model.digest()
    with pytest.raises(EmptyModelError, match="Number of priors"):
        model.forget([0])
    light = MultinomialNB().fit([[1.0], [2.0]], [0, 1], sample_weight=[1.0, 0.0])
    with pytest.raises(EmptyModelError, match="weight"):
        light.forget([0])
    assert model.digest() == before


def test_files_and_copies(tmp_path: Path) -> None:
    X, y, _ = make_rows()
    for model in map(copy.deepcopy, MODELS):
        model.fit(X, y).forget([1, 2])
        letheon.save(model, tmp_path / "model")
        others = [
            letheon.load(tmp_path / "model"),
            pickle.loads(pickle.dumps(model)),
            copy.deepcopy(model),
        ]
        for each in (model, *others):
            each.forget([5])
        assert {other.digest() for other in others} == {model.digest()}


# Planted bugs


def equals_fresh_fit() -> bool:
    X, y, _ = make_rows(n=200)
    model = MultinomialNB().fit(X / 7, y)
    for person in range(60):
        model.forget([person])
    fresh = MultinomialNB().fit(X[60:] / 7, y[60:], ids=list(range(60, 200)))
    return bool(model.digest() == fresh.digest())


def test_planted_bug_sums_of_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    assert equals_fresh_fit()

    def start(self: FeatureSums, n_columns: int) -> None:
        self.values = np.zeros((len(self.classes), n_columns))  # type: ignore[assignment]

    monkeypatch.setattr(FeatureSums, "_start", start)
    monkeypatch.setattr(sums_module, "round_to_grid", lambda values: np.asarray(values, float))
    assert not equals_fresh_fit()


def test_planted_bug_new_columns_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    add_columns = FeatureSums.add_columns

    def forgetful(self: FeatureSums, part: Any, columns: Any = None) -> None:
        if columns is None:
            add_columns(self, part)

    monkeypatch.setattr(FeatureSums, "add_columns", forgetful)
    with pytest.raises(AssertionError):
        test_columns_move_appear_and_change(MODELS[0], False)


def test_planted_bug_a_class_that_never_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit() -> Any:
        return MultinomialNB().fit([[1.0], [2.0]], ["ash", "a longer label"])

    alone = MultinomialNB().fit([[1.0]], ["ash"])
    model = fit()
    model.forget([1])
    assert model.digest() == alone.digest()
    monkeypatch.setattr(FeatureSums, "drop_empty_classes", lambda self: None)
    model = fit()
    model.forget([1])
    assert model.digest() != alone.digest()


def test_blocks_without_labels_are_refused() -> None:
    source = make_source(np.ones((2, 2)), [0, 1])
    block = source.take(np.array([0]))
    with pytest.raises(ValueError, match="requires y"):
        module._labels_of(Block(block.X, None, block.ids))


@pytest.mark.parametrize("wrong", [{"alpha": ""}, {"class_prior": [[1], [2, 3]]}, {"norm": "x"}])
def test_wrong_parameters_are_refused_before_the_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match="expected"):
        ComplementNB(**wrong).fit([[1.0], [2.0]], [0, 1])
