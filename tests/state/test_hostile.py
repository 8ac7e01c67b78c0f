"""A hostile file runs nothing, imports nothing, and reads or writes outside no array."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.cluster import BisectingKMeans, KMeans
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
)
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.neighbors import KDTree
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from letheon import state
from letheon.exceptions import CorruptFileError, StateError, UntrustedClassError
from letheon.state import tag_of
from letheon.state._bytes import to_bytes
from letheon.state._nodes import (
    Coded,
    Dtype,
    Fields,
    Instance,
    Items,
    Name,
    Objects,
    Record,
    Scalar,
    Triple,
)
from letheon.state._tags import codec_of, is_listed_class
from tests.state.forge import blob_of

X, Y = make_classification(60, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=0)

NAMES = [
    "os.system",
    "posix.system",
    "builtins.eval",
    "builtins.exec",
    "builtins.getattr",
    "subprocess.Popen",
    "pickle.loads",
    "numpy.load",
    "numpy.mean.__globals__",
    "numpy.savetxt",
    "sklearn.datasets._base.load_files",
    "sklearn.externals._packaging.version.os",
    "sklearn.linear_model._base.LinearRegression.fit",
    "sklearn.linear_model._base.np",
    "sklearn.model_selection._search.GridSearchCV",
    "sklearn.tree._tree.TreeBuilder",
    "letheon.cli.app",
    "letheon.state._tags.register_codec",
    "letheon.state._stores.os",
    "letheon.base.__builtins__",
    "letheon.stated.Evil",
    "letheon.sharded.__main__.Evil",
    "joblib.memory.Memory",
    "torch.load",
    "torch.serialization.load",
    "torch.save",
    "torch.hub.load",
    "torch.relu",
    "torch.ops.load_library",
    "torch.nn.modules.module.Module",
    "torch.nn.functional.torch",
    "torch.optim.Adam",
    "torch.optim.lbfgs.LBFGS",
    "torch.optim.adam.Adam.step",
    "torch.optim.adam._to_scalar",
    "torch.utils.cpp_extension.load",
    "",
    "x",
    ".",
    "..",
    "os.",
    ".system",
]


def _as_name(name: str) -> Any:
    return Name(name)


def _as_object(name: str) -> Any:
    return Instance(name, Record((("a", "touch x"),)))


def _as_coded(name: str) -> Any:
    return Coded(name, "touch x")


@pytest.mark.parametrize("form", [_as_name, _as_object, _as_coded])
@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_not_allowed(name: str, form: Callable[[str], Any]) -> None:
    with pytest.raises(UntrustedClassError):
        state.decode(blob_of(form(name)))


@pytest.mark.parametrize("name", ["letheon.naive.Any", "letheon.base.ForgetMixin.forget"])
def test_only_classes_with_state_of_this_package(name: str) -> None:
    with pytest.raises(UntrustedClassError):
        state.decode(blob_of(_as_object(name)))


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("letheon.naive.NaiveUnlearner", True),
        ("letheon.sharded._sisa.SISAClassifier", True),
        ("letheon.sharded.__main__.SISAClassifier", False),
        ("letheon.naively.NaiveUnlearner", False),
        ("letheon.cli.NaiveUnlearner", False),
        ("letheon.naive.NaiveUnlearner.fit x", False),
        ("sklearn.linear_model._ridge.Ridge", True),
        ("sklearn.linear_model.Ridge", False),
    ],
)
def test_allow_list_by_name(name: str, allowed: bool) -> None:
    assert is_listed_class(name) is allowed


def test_an_unregistered_codec_is_named() -> None:
    words = r"register 'mine.Own' with letheon.state.register_codec$"
    with pytest.raises(UntrustedClassError, match=words):
        state.decode(blob_of(Coded("mine.Own", 1)))


# Our classes may be parts of a model; as values, to be called by who holds them, few may.
@pytest.mark.parametrize(
    "name",
    [
        "letheon.naive.NaiveUnlearner",
        "letheon.state._stores.DirectoryStore",
        "letheon.deep._vault.Vault",
        "letheon.deep._nets.torch",
        "letheon.deep._nets.MLP.__init__",
        "letheon.deep._netsx.MLP",
        "letheon.deep.__main__.MLP",
    ],
)
def test_most_classes_of_ours_are_no_values(name: str) -> None:
    with pytest.raises(UntrustedClassError, match="does not know"):
        state.decode(blob_of(_as_name(name)))


def test_listed_class_that_turns_out_to_be_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = ModuleType("torch.optim.sgd")
    planted.SGD = print  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.optim.sgd", planted)
    with pytest.raises(UntrustedClassError, match="that the allow-list states"):
        state.decode(blob_of(_as_name("torch.optim.sgd.SGD")))


def test_listed_function_that_turns_out_to_be_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = ModuleType("torch.nn.functional")
    planted.cross_entropy = Armed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.nn.functional", planted)
    with pytest.raises(UntrustedClassError, match="that the allow-list states"):
        state.decode(blob_of(_as_name("torch.nn.functional.cross_entropy")))


def test_all_wrong_names_are_listed() -> None:
    tree = Record((("a", Name("os.system")), ("b", Name("a.b"))))
    with pytest.raises(UntrustedClassError, match=r"'a\.b', 'os\.system'"):
        state.decode(blob_of(tree))


@pytest.mark.parametrize("form", [_as_name, _as_object, _as_coded])
def test_audit_comes_before_any_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Callable[[str], Any]
) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "hostile_module.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UntrustedClassError):
        state.decode(blob_of(form("hostile_module.Evil")))
    assert "hostile_module" not in sys.modules
    assert not marker.exists()


class Armed:
    """Runs when pickle or a constructor would touch it."""

    ran = False

    def __new__(cls) -> Self:
        cls.ran = True
        return super().__new__(cls)

    def __init__(self) -> None:
        type(self).ran = True

    def __setstate__(self, _: Any) -> None:
        type(self).ran = True

    def __setattr__(self, _: str, __: Any) -> None:
        type(self).ran = True


def test_trusted_class_is_built_without_its_methods() -> None:
    tree = Instance(tag_of(Armed), Record((("a", 1),)))
    decoded = state.decode(blob_of(tree), trusted=[Armed])
    assert vars(decoded) == {"a": 1}
    assert not Armed.ran


def _broken(change: Callable[[dict[str, Any]], None], value: Any) -> bytes:
    """Return the blob of an object whose codec's plain value was changed."""
    codec = codec_of(type(value))
    assert codec is not None
    plain = codec.encode(value)
    change(plain)
    return blob_of(Coded(tag_of(type(value)), state.to_tree(plain)))


def _set(key: str, field: str, at: int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(plain: dict[str, Any]) -> None:
        plain[key][field][at] = to

    return change


def _put(key: str, to: Any) -> Callable[[dict[str, Any]], None]:
    return lambda plain: plain.update({key: to})


TREE_CHANGES = [
    _set("nodes", "left_child", 0, 0),
    _set("nodes", "left_child", 0, 10**6),
    _set("nodes", "right_child", 0, -7),
    _set("nodes", "right_child", 0, -1),
    _set("nodes", "feature", 0, 5),
    _set("nodes", "feature", 0, -2),
    _put("n_features", 2**40),
    _put("n_features", True),
    _put("n_outputs", 3),
    _put("n_classes", np.array([2**40])),
    _put("n_classes", np.array([2], np.int32)),
    _put("values", np.zeros((1, 1, 3))),
    _put("nodes", np.zeros(0)),
    _put("nodes", "x"),
]


@pytest.mark.parametrize("change", TREE_CHANGES, ids=range(len(TREE_CHANGES)))
def test_decision_tree_with_a_wrong_turn(change: Any) -> None:
    tree = DecisionTreeClassifier(random_state=0).fit(X, Y).tree_
    with pytest.raises(CorruptFileError):
        state.decode(_broken(change, tree))


@pytest.mark.parametrize(
    "change",
    [
        _set("nodes", "left", 0, 0),
        _set("nodes", "right", 0, 2**31),
        _set("nodes", "feature_idx", 0, -1),
        _put("raw_left_cat_bitsets", np.zeros((1, 3), np.uint32)),
    ],
    ids=range(4),
)
def test_boosted_tree_with_a_wrong_turn(change: Any) -> None:
    model = HistGradientBoostingClassifier(max_iter=1, min_samples_leaf=5).fit(X, Y)
    with pytest.raises(CorruptFileError):
        state.decode(_broken(change, model._predictors[0][0]))


def _altered(model: Any, **attributes: Any) -> Any:
    vars(model).update(attributes)
    return model


def _svc() -> Any:
    return SVC().fit(X, Y)


def _forest_of_another_width() -> Any:
    model = RandomForestClassifier(3, random_state=0).fit(X, Y)
    model.estimators_[1] = DecisionTreeClassifier().fit(np.c_[X, X], Y)
    return model


def _boosting(**attributes: Any) -> Any:
    return _altered(GradientBoostingClassifier(n_estimators=2).fit(X, Y), **attributes)


def _bisecting() -> Any:
    model = BisectingKMeans(3, random_state=0).fit(X)
    model._bisecting_tree.left.center = np.zeros(2)
    return model


def _histogram_boosting() -> Any:
    model = HistGradientBoostingClassifier(max_iter=1, min_samples_leaf=5).fit(X, Y)
    model._predictors[0][0].nodes["feature_idx"][0] = 5
    return model


UNSOUND: list[Callable[[], Any]] = [
    lambda: _altered(DecisionTreeClassifier().fit(X, Y), n_features_in_=3),
    lambda: _altered(DecisionTreeClassifier().fit(X, Y), tree_="x"),
    _forest_of_another_width,
    lambda: _altered(IsolationForest(n_estimators=3).fit(X), _max_features=4),
    lambda: _boosting(n_features_in_=3),
    lambda: _boosting(n_trees_per_iteration_=1),
    lambda: _boosting(estimators_=np.array([[DecisionTreeClassifier()]], object)),
    lambda: _boosting(init_=DecisionTreeClassifier().fit(X, Y > 0)),
    _histogram_boosting,
    lambda: _altered(_svc(), _n_support=np.array([10**6, 1, 1], np.int32)),
    lambda: _altered(_svc(), _dual_coef_=np.zeros((1, 3))),
    lambda: _altered(_svc(), _intercept_=np.zeros(1)),
    lambda: _altered(_svc(), support_vectors_=np.zeros((2, 5))),
    lambda: _altered(_svc(), kernel="precomputed"),
    lambda: _altered(_svc(), _effective_probability=True),
    lambda: _altered(KMeans(2, n_init=1).fit(X), cluster_centers_=np.zeros((2, 2))),
    lambda: _altered(KMeans(2, n_init=1).fit(X), _n_threads=10**6),
    _bisecting,
    lambda: HashingVectorizer(n_features=0),
]


@pytest.mark.parametrize("make", UNSOUND, ids=range(len(UNSOUND)))
def test_estimators_that_would_read_elsewhere(make: Callable[[], Any]) -> None:
    blob = state.encode(make())
    with pytest.raises(CorruptFileError):
        state.decode(blob)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (np.random.RandomState(0), lambda p: p["state"].update(pos=10**6)),
        (np.random.RandomState(0), lambda p: p["state"].update(key=np.zeros(3, np.uint64))),
        (np.random.RandomState(0), _put("bit_generator", "Generator")),
        (np.random.default_rng(0), _put("extra", 1)),
        (np.random.Generator(np.random.Philox(0)), _put("buffer_pos", -9)),
        (sp.csr_array(np.eye(3)), _put("indices", np.array([0, 1, 9], np.int32))),
        (sp.csr_array(np.eye(3)), _put("indptr", np.array([0, 1, 2, 99], np.int32))),
        (sp.csr_array(np.eye(3)), _put("indptr", np.array([0, 9, 9, 0], np.int32))),
        (sp.csr_array(np.eye(3)), _put("indices", np.array([0.0, 1, 2]))),
        (sp.coo_array(np.eye(3)), _put("coords", (np.array([0, 1, 9]), np.arange(3)))),
        (KDTree(X), _put("metric", "pyfunc")),
        (KDTree(X), _put("leaf_size", 0)),
        (KDTree(X), _put("data", np.zeros(3))),
    ],
    ids=range(13),
)
def test_helpers_with_wrong_indices(value: Any, change: Any) -> None:
    with pytest.raises(CorruptFileError):
        state.decode(_broken(change, value))


@pytest.mark.parametrize(
    "hide",
    [
        lambda node: Triple("slice", node, None, None),
        lambda node: Triple("range", 0, node, 1),
        lambda node: Items("list", (Triple("slice", None, None, Items("tuple", (node,))),)),
        Dtype,
        lambda node: Fields(node, (0,), ()),
        lambda node: Scalar(Objects((), (node,))),
    ],
    ids=range(6),
)
@pytest.mark.parametrize(
    "node",
    [Name("os.system"), Instance("tempfile._TemporaryFileCloser", Record(()))],
    ids=["f", "c"],
)
def test_a_name_is_found_wherever_it_hides(hide: Any, node: Any) -> None:
    with pytest.raises(UntrustedClassError, match=node.name):
        state.decode(blob_of(hide(node)))


@pytest.mark.parametrize("node", [Name("os.system"), Instance("tempfile.X", Record(()))])
def test_nothing_is_imported_that_the_audit_has_missed(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("letheon.state._decode.audit", lambda *_: None)
    with pytest.raises(UntrustedClassError, match=f"{node.name}.*not on the allow-list"):
        state.decode(blob_of(node))


def _models() -> list[bytes]:
    models = [
        SGDClassifier(random_state=0).fit(X, Y),
        DecisionTreeClassifier(max_depth=2, random_state=0).fit(X, Y),
        HistGradientBoostingClassifier(max_iter=1, min_samples_leaf=9, random_state=0).fit(X, Y),
        _svc(),
        {"frame": sp.csr_array(X), "rng": np.random.default_rng(0), "text": np.array(["a", "bc"])},
    ]
    return [to_bytes(state.to_tree(model)) for model in models]


BODIES = _models()


@given(st.integers(0, len(BODIES) - 1), st.floats(0, 0.999999), st.integers(0, 255))
@example(0, 0.0, 0)
def test_any_changed_byte_with_a_right_hash_is_refused_or_harmless(
    which: int, where: float, to: int
) -> None:
    import hashlib

    body = bytearray(BODIES[which])
    body[int(where * len(body))] = to
    blob = b"letheon-state-v1\0" + hashlib.sha256(body).digest() + body
    try:
        decoded = state.decode(blob)
    except StateError:
        return
    assert _is_harmless(decoded)


def _is_harmless(decoded: Any) -> bool:
    """Use a changed value: it may be wrong or complain, it may not crash or answer too little."""
    if not hasattr(decoded, "predict"):
        return True
    try:
        return len(decoded.predict(X)) == len(X)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError):
        return True
