"""What a file may set: no setting that reads files, keeps files, runs code or never ends."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import FeatureAgglomeration, KMeans
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectFromModel, SelectKBest
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

import letheon
from letheon import DataIndependent, ForgetPipeline, NaiveUnlearner, SISAClassifier, state
from letheon.exceptions import UntrustedClassError
from letheon.guarantee import MethodFacts
from letheon.persist import inspect as inspect_file
from letheon.state._decode import _Builder
from letheon.state._nodes import Instance, Items, Record, Ref
from letheon.state._settings_rules import _Checker
from tests.state.forge import blob_of

X = np.random.default_rng(0).normal(size=(12, 3))
Y = np.arange(12) % 2
TEXTS = np.array(["red blue", "blue green"] * 6, dtype=object)
VECTORIZER = "sklearn.feature_extraction.text.CountVectorizer"


def own_function(value: Any) -> Any:
    """Stand for code of the caller."""
    return value


def refused(value: Any, match: str, trusted: Any = ()) -> None:
    """Check that a value is not read back, and that the error names the setting."""
    with pytest.raises(UntrustedClassError, match=match):
        state.decode(state.encode(value), trusted=trusted)


def with_attributes(value: Any, **attributes: Any) -> Any:
    """Return an object with attributes that its constructor would not set."""
    vars(value).update(attributes)
    return value


def instance(name: str, **attributes: Any) -> Instance:
    return Instance(name, Record(tuple(sorted(attributes.items()))))


# --- the exploit ----------------------------------------------------------------------------------


@pytest.fixture
def model_that_reads_files(tmp_path: Path) -> Path:
    """Save a model whose rows are names of files."""
    (tmp_path / "a").write_text("red blue")
    (tmp_path / "b").write_text("green")
    rows = np.array([str(tmp_path / name) for name in "ab" * 4], dtype=object)
    pipeline = make_pipeline(CountVectorizer(input="filename"), LogisticRegression())
    model = NaiveUnlearner(pipeline, random_state=0).fit(rows, [0, 1] * 4)
    letheon.save(model, tmp_path / "model.letheon")
    return tmp_path / "model.letheon"


def test_a_model_from_outside_reads_no_files(model_that_reads_files: Path) -> None:
    secret = model_that_reads_files.parent / "key"
    secret.write_text("red red green")
    with pytest.raises(UntrustedClassError) as caught:
        letheon.load(model_that_reads_files).predict_proba([str(secret)])
    assert "CountVectorizer.input is 'filename' (allowed: None, 'content')" in str(caught.value)
    assert f"pass trusted=['{VECTORIZER}']" in str(caught.value)


def test_its_owner_can_trust_it(model_that_reads_files: Path) -> None:
    for trusted in ([CountVectorizer], [VECTORIZER]):
        model = letheon.load(model_that_reads_files, trusted=trusted)
        assert model.predict([str(model_that_reads_files.parent / "a")]).tolist() == [0]


def test_inspect_says_what_needs_trust(model_that_reads_files: Path, tmp_path: Path) -> None:
    assert "CountVectorizer.input" in inspect_file(model_that_reads_files).needs_trust
    letheon.save(NaiveUnlearner(Ridge(), random_state=0).fit(X, Y), tmp_path / "plain")
    assert inspect_file(tmp_path / "plain").needs_trust == ""


# --- settings that are refused --------------------------------------------------------------------

HOSTILE: dict[str, Any] = {
    "CountVectorizer.input": CountVectorizer(input="file"),
    "TfidfVectorizer.input": TfidfVectorizer(input="filename"),
    "HashingVectorizer.input": HashingVectorizer(input="filename"),
    "HashingVectorizer.encoding": HashingVectorizer(encoding="zip_codec"),
    "CountVectorizer.decode_error": CountVectorizer(decode_error="surrogateescape"),
    "CountVectorizer.tokenizer": CountVectorizer(tokenizer=np.exp),
    "CountVectorizer.preprocessor": CountVectorizer(preprocessor=accuracy_score),
    "CountVectorizer.analyzer": CountVectorizer(analyzer=functools.partial(np.add, 1.0)),
    "CountVectorizer.strip_accents": CountVectorizer(strip_accents=np.exp),
    "CountVectorizer.token_pattern": CountVectorizer(token_pattern="b|(?:a|aa)+c"),
    "CountVectorizer.max_features": CountVectorizer(max_features=10**12),
    "CountVectorizer.ngram_range": CountVectorizer(ngram_range=np.array(["a"])),
    "make_column_selector.pattern": make_column_selector(pattern="(a+)+$"),
    "ColumnTransformer.verbose_feature_names_out": ColumnTransformer(
        [], verbose_feature_names_out="{feature_name:>999999999}"
    ),
    "Pipeline.memory": with_attributes(make_pipeline(Ridge()), memory_=1, memory=0),
    "RandomForestClassifier.n_jobs": RandomForestClassifier(n_jobs=10_000),
    "RandomForestClassifier.n_estimators": RandomForestClassifier(np.int64(10**12)),
    "LogisticRegression.max_iter": LogisticRegression(max_iter=1e30),
    "KNeighborsClassifier.weights": KNeighborsClassifier(weights=np.exp),
    "KNeighborsClassifier.metric_params": KNeighborsClassifier(metric_params={"w": "text"}),
    "KMeans.init": KMeans(init=np.exp),
    "SelectFromModel.importance_getter": SelectFromModel(Ridge(), importance_getter="__class__"),
    "FunctionTransformer.func": FunctionTransformer(functools.partial(np.add, out="text")),
    "FunctionTransformer.kw_args": FunctionTransformer(np.add, kw_args={"out": np.ones(3)}),
    "FunctionTransformer.inv_kw_args": FunctionTransformer(inv_kw_args={"like": np.ones(3)}),
    "FunctionTransformer.feature_names_out": FunctionTransformer(feature_names_out=np.exp),
    "SVC.kernel": SVC(kernel="unknown"),
    "Ridge.unheard": with_attributes(Ridge(), unheard=1),
    "Ridge.__sklearn_clone__": with_attributes(Ridge(), __sklearn_clone__=1),
    "Ridge._hook": with_attributes(Ridge(), _hook=np.exp),
    "Ridge.hook_": with_attributes(Ridge(), hook_=functools.partial(np.exp)),
    "Ridge._skl_callbacks": with_attributes(Ridge(), _skl_callbacks=[Ridge()]),
    "Ridge.path_": with_attributes(Ridge(), path_=Path("/etc")),
    "_Scorer._response_method": with_attributes(
        make_scorer(accuracy_score), _response_method="set_params"
    ),
    "_Scorer._kwargs": make_scorer(accuracy_score, sample_weight="text"),
    "BaggingClassifier.input": with_attributes(
        BaggingClassifier(CountVectorizer()), input="filename", estimator_params=("input",)
    ),
    "NaiveUnlearner.config_": with_attributes(
        NaiveUnlearner(Ridge()), config_={"skip_parameter_validation": True}
    ),
    "SISAClassifier.checkpoint_dir": SISAClassifier(Ridge(), checkpoint_dir="/tmp"),
    "SISAClassifier.n_jobs": SISAClassifier(Ridge(), n_jobs=10**6),
    "SISAClassifier.aggregation": SISAClassifier(Ridge(), aggregation="other"),
    "SISAClassifier.checkpoint_home_": with_attributes(
        SISAClassifier(Ridge()), checkpoint_home_="/tmp/" + "0" * 32
    ),
}


@pytest.mark.parametrize("place", HOSTILE)
def test_a_hostile_setting_is_refused(place: str) -> None:
    if place == "Pipeline.memory":  # what `save` refuses, a forger writes
        steps = Items("list", ())
        tree = instance("sklearn.pipeline.Pipeline", memory="/tmp", steps=steps)
        with pytest.raises(UntrustedClassError, match=r"Pipeline\.memory is .*allowed: None"):
            state.decode(blob_of(tree))
        return
    refused(HOSTILE[place], place.replace(".", r"\."))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: make_pipeline(value, SGDClassifier()),
        lambda value: FeatureUnion([("a", value)]),
        lambda value: ColumnTransformer([("a", value, 0)], remainder=value),
        lambda value: NaiveUnlearner(make_pipeline(value, Ridge())),
        lambda value: SISAClassifier(make_pipeline(value, SGDClassifier())),
        lambda value: ForgetPipeline(
            [("a", DataIndependent(value)), ("b", NaiveUnlearner(Ridge()))]
        ),
        lambda value: BaggingClassifier(make_pipeline(value, SGDClassifier())),
        lambda value: with_attributes(Ridge(), learned_={"a": [(value,)]}),
        lambda value: np.array([value, None], dtype=object),
        lambda value: {1: value},
    ],
)
def test_a_hostile_setting_is_found_anywhere(wrap: Any) -> None:
    refused(wrap(HashingVectorizer(input="filename")), r"HashingVectorizer\.input")
    refused(
        wrap(HashingVectorizer(input="filename")), r"HashingVectorizer\.input", [CountVectorizer]
    )


@pytest.mark.parametrize(
    "disguise",
    [
        np.str_("filename"),
        np.array("filename"),
        np.array(["filename"], dtype=object),
        np.array(b"filename"),
        ["filename"],
        {"filename"},
        {"filename": "filename"},
        b"filename",
        np.exp,
        Path("filename"),
        Ridge(),
    ],
    ids=repr,
)
def test_a_word_in_disguise_is_refused(disguise: Any) -> None:
    value = CountVectorizer(input=disguise)
    refused(value, r"CountVectorizer\.input")
    state.decode(state.encode(value), trusted=[CountVectorizer])


def test_a_reference_is_what_it_points_to() -> None:
    shared = np.array(["filename"])
    both = with_attributes(CountVectorizer(), fixed_=shared, input=shared)
    tree: Any = state.to_tree(both)
    assert type(dict(tree.state.items)["input"]) is Ref
    refused(both, r"CountVectorizer\.input")
    twice = np.ones(3)
    harmless = with_attributes(SelectKBest(), a_=[Ridge(), {1: twice}], b_=twice, c_={"x": twice})
    state.decode(state.encode(harmless))
    partial = functools.partial(np.exp, dtype=np.float64)
    steps = [("a", FunctionTransformer(partial)), ("b", CountVectorizer(tokenizer=partial))]
    refused(Pipeline(steps), r"CountVectorizer\.tokenizer")


LEAVES = st.sampled_from(
    [
        *(1, "text", np.ones(2), np.array(["a"]), np.array([(1, 2.0)], "i4,f8"), np.float64(1)),
        *(np.str_("b"), sp.csr_array(np.eye(2)), functools.partial(np.exp), Ridge(), slice(1, 2)),
        np.exp,
    ]
)


def containers(inner: Any) -> Any:
    """Return values with values inside, in every kind of container."""
    keys = st.sampled_from(["a", 1, (1, "x"), frozenset({2.0})])
    values = st.lists(inner, max_size=3)
    return st.one_of(
        values,
        values.map(tuple),
        values.map(_object_array),
        st.dictionaries(keys, inner, max_size=3),
        values.map(lambda value: with_attributes(Ridge(), found_=value)),
        values.map(lambda value: with_attributes(NaiveUnlearner(Ridge()), found_=value)),
        st.just({1, "a", ("b", 2)}),
    )


def _object_array(values: list[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


@given(st.recursive(LEAVES, containers, max_leaves=12))
def test_references_are_numbered_as_the_builder_numbers_them(value: Any) -> None:
    """A reference is checked as what it points to, so both must agree on the numbers."""
    built: list[str] = []
    checked: list[str] = []
    keep_value, keep_node = _Builder._number_value, _Checker._number_node

    def note_value(builder: Any, value: Any, *more: Any) -> Any:
        built.extend([] if builder.numbered is None else [type(value).__name__])
        return keep_value(builder, value, *more)

    def note_node(checker: Any, node: Any) -> None:
        name = getattr(node, "name", "ndarray").rpartition(".")[2]
        checked.extend([] if checker.numbered is None else [name])
        keep_node(checker, node)

    blob = state.encode(with_attributes(Ridge(), found_=[value, value]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Builder, "_number_value", note_value)
        patch.setattr(_Checker, "_number_node", note_node)
        state.decode(blob, trusted=[Ridge, NaiveUnlearner])
    assert checked == built


@pytest.mark.parametrize("name", ["predict", "fit", "_validate_params", "get_params", "score"])
def test_no_attribute_replaces_a_method(name: str) -> None:
    tree = instance("sklearn.linear_model._ridge.Ridge", **{name: 1})
    with pytest.raises(UntrustedClassError, match=name):
        state.decode(blob_of(tree))


def test_no_attribute_replaces_a_constant_or_a_method_of_ours() -> None:
    facts = MethodFacts(
        method="x",
        applicability="x",
        exact=True,
        strength="strong",
        efficiency_parameters=(),
        certifiability_parameters=(),
        requests="oblivious",
        releases="latest-only",
        state_holds_rows=True,
        definition_name="naive",
    )
    refused(with_attributes(NaiveUnlearner(Ridge()), facts=facts), "'facts'")
    refused(replace(facts, definition_name="../../../etc/motd"), "definition_name")
    refused(with_attributes(NaiveUnlearner(Ridge()), forget=1), "'forget'")
    refused(with_attributes(Ridge(), _parameter_constraints={}), "_parameter_constraints")
    refused(with_attributes(OneHotEncoder(), transform=None), r"OneHotEncoder\.transform")


def test_states_that_come_with_a_model_obey_the_same_rules() -> None:
    """The saved states of SISA are bytes, which the audit of the file does not look into."""
    model = SISAClassifier(SGDClassifier(), n_shards=1, n_slices=2, random_state=0)
    model.fit(X, Y, ids=np.arange(12))
    hostile = with_attributes(SGDClassifier(), n_jobs=10**6)
    shard: Any = model.ensemble_.shards[0]
    forged = replace(shard.states[0], data=state.encode(hostile))
    model.ensemble_ = replace(model.ensemble_, shards=(replace(shard, states=(forged,)),))
    again = state.decode(state.encode(model))
    late = int(shard.rows.ids.to_array()[shard.rows.extra["slice"] == 1][0])
    with pytest.raises(Exception, match=r"SGDClassifier\.n_jobs"):
        again.forget([late])


# --- settings that are allowed --------------------------------------------------------------------


def test_a_function_of_the_caller_is_trusted_by_name() -> None:
    value = CountVectorizer(tokenizer=own_function, token_pattern=None)
    refused(value, "own_function")
    again = state.decode(state.encode(value), trusted=[own_function])
    assert again.tokenizer is own_function
    function = FunctionTransformer(functools.partial(own_function, how="text"))
    assert state.decode(state.encode(function), trusted=[own_function]).func.func is own_function


def test_only_the_class_that_is_trusted_is_free() -> None:
    steps = make_pipeline(CountVectorizer(input="filename"), KMeans(init=np.exp))
    refused(steps, r"KMeans\.init", [CountVectorizer])
    assert state.decode(state.encode(steps), trusted=[CountVectorizer, KMeans])[1].init is np.exp


HARMLESS: list[Any] = [
    CountVectorizer(stop_words=["a", "the"], vocabulary={"red": 0}, encoding="latin-1"),
    CountVectorizer(token_pattern=r"(?u)\b\w+\b", max_df=0.5, min_df=2, ngram_range=(1, 2)),
    OneHotEncoder(categories=[np.array(["a", "b"], object)], drop=["a"], dtype="float32"),
    LogisticRegression(class_weight={"yes": 1.0, "no": 2.0}, n_jobs=-1),
    LogisticRegression(class_weight={0: 1.0, 1: 2.0}, random_state=np.random.RandomState(0)),
    RandomForestClassifier(np.int64(10), max_features="sqrt", n_jobs=8, random_state=2**32 - 1),
    SelectFromModel(Ridge(), threshold="1.25*mean", importance_getter="regressor_.coef_"),
    FunctionTransformer(np.log1p, inverse_func=np.expm1, kw_args={"dtype": np.float64}),
    FunctionTransformer(functools.partial(np.clip, a_min=0.0, a_max=1.0)),
    KNeighborsClassifier(metric="minkowski", metric_params={"w": np.ones(3)}),
    SVC(kernel=sklearn.metrics.pairwise.rbf_kernel),
    FeatureAgglomeration(pooling_func=np.mean),
    make_scorer(accuracy_score, normalize=False),
    ColumnTransformer(
        [("a", StandardScaler(), make_column_selector("^num_", dtype_include="number"))],
        verbose_feature_names_out="{transformer_name}-{feature_name}",
    ),
    NaiveUnlearner(make_pipeline(FunctionTransformer(np.exp), Ridge())),
    SISAClassifier(SGDClassifier(), epochs=2, n_jobs=2, random_state=2**100),
]


@pytest.mark.parametrize("value", HARMLESS, ids=lambda value: type(value).__name__)
def test_an_ordinary_setting_is_read_back(value: Any) -> None:
    again = state.decode(state.encode(value))
    assert state.digest(again) == state.digest(value)
    assert state.trust_of(value) == frozenset()


LINEAR = [
    *(r"(?u)\b\w\w+\b", r"\w+", r"\b\w+\b", r"[a-z]+", r"\b[a-zA-Z]{3,}\b", r"\S+", r"\w{2,}"),
    *(r"(?u)\b[^\d\W]+\b", r"#\w+", r"\d+", r".*", "^num_", "_id$", "city|town", r"[^,]+"),
]
NOT_LINEAR = [
    *("b|(?:a|aa)+c", "(a+)+$", "(a|a)*b", r"(\w+\s?)+$", "a*a*a*b", r"\w+x", "a+$", r"[a-z]+\b"),
    *(r"(a)\1+", "(?=a)b", "(?:a{1,99}){1,99}", r"\w+\w+\b", "a++", "x{1,999999}", "(?i)a", "a**"),
]


@pytest.mark.parametrize("pattern", LINEAR)
def test_a_regular_expression_that_cannot_backtrack(pattern: str) -> None:
    again = state.decode(state.encode(CountVectorizer(token_pattern=pattern)))
    assert again.token_pattern == pattern


@pytest.mark.parametrize("pattern", NOT_LINEAR)
def test_a_regular_expression_that_may_backtrack(pattern: str) -> None:
    refused(CountVectorizer(token_pattern=pattern), r"CountVectorizer\.token_pattern")


def test_an_error_quotes_nothing_long() -> None:
    secret = "very-secret/" * 50
    with pytest.raises(UntrustedClassError) as caught:
        state.decode(state.encode([CountVectorizer(input=secret, encoding=secret)] * 30))
    assert "very-secret" not in str(caught.value)
    assert "a text of 600 characters" in str(caught.value)
    assert len(str(caught.value)) < 1000
