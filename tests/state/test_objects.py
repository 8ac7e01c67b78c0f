"""Objects: attributes, own states, aliases, what the digest leaves out, what is refused."""

import re
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.cluster import Birch, KMeans
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MultiLabelBinarizer, StandardScaler

from letheon import state
from letheon.exceptions import CorruptFileError, UnsupportedStateError, UntrustedClassError
from letheon.guarantee import Guarantee
from letheon.state._nodes import Name, Record, Ref


class Mine(BaseEstimator):
    """A class of the caller."""

    def __init__(self, a: Any = None, n_jobs: int | None = None) -> None:
        self.a = a
        self.n_jobs = n_jobs


class Celsius:
    """A class that keeps its own state."""

    def __init__(self, degrees: float) -> None:
        self.degrees = degrees
        self.cache = object()

    def _to_state(self) -> dict[str, Any]:
        return {"degrees": self.degrees}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(state["degrees"])

    def _digest_state(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Frozen:
    """A frozen dataclass of the caller."""

    a: int


class Outer:
    """Holds a class of its own."""

    class Inner:
        """Found through the outer one."""


class Odd(type):
    """A metaclass of the caller."""


class Strange(metaclass=Odd):
    """A class of another kind than `type`."""


def double(x: Any) -> Any:
    """Return twice x."""
    return 2 * x


def test_class_of_the_caller_needs_trust() -> None:
    blob = state.encode(Mine([1]))
    with pytest.raises(UntrustedClassError, match=r"Mine.*trusted="):
        state.decode(blob)


@pytest.mark.parametrize("how", [Mine, [Mine], {f"{Mine.__module__}.Mine"}], ids=str)
def test_class_of_the_caller_with_trust(how: Any) -> None:
    copied = state.decode(state.encode(Mine([1])), trusted=how)
    assert type(copied) is Mine
    assert vars(copied) == {"a": [1], "n_jobs": None}


def test_classes_of_decodes_its_own_state() -> None:
    class Local(Mine):
        pass

    value = Local([Frozen(3), FunctionTransformer(double), np.exp])
    copied = state.decode(state.encode(value), trusted=state.classes_of(value))
    assert type(copied) is Local
    assert copied.a[0] == Frozen(3)
    assert copied.a[1].transform(4) == 8


CLASS_VALUES = [Mine, Frozen, Outer, Outer.Inner, Strange, Ridge, Fraction]


@pytest.mark.parametrize("cls", CLASS_VALUES)
def test_class_as_a_value_is_its_name(cls: type) -> None:
    name = f"{cls.__module__}.{cls.__qualname__}"
    assert state.to_tree({"module": cls}) == Record((("module", Name(name)),))
    assert state.names_of(state.to_tree([cls])) == (name,)
    assert state.classes_of({"module": cls}) == {cls}


@pytest.mark.parametrize("cls", CLASS_VALUES)
def test_class_as_a_value_needs_trust(cls: type) -> None:
    name = f"{cls.__module__}.{cls.__qualname__}"
    blob = state.encode({"module": cls})
    with pytest.raises(UntrustedClassError, match=cls.__name__):
        state.decode(blob)
    assert state.decode(blob, trusted=[cls])["module"] is cls
    assert state.decode(blob, trusted=[name])["module"] is cls
    assert state.decode(blob, trusted=state.classes_of({"module": cls}))["module"] is cls


def test_the_error_says_what_to_type() -> None:
    blob = state.encode([Outer, Mine(1)])
    names = sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in (Outer, Mine))
    with pytest.raises(UntrustedClassError, match=re.escape(f"pass trusted={names}")):
        state.decode(blob)
    assert state.decode(blob, trusted=names)[0] is Outer


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (sys.modules[__name__], f"the whole module {__name__}; list .* for example {__name__}.Net"),
        (Frozen(3), r"trusted contains .*Frozen.*; expected classes, functions"),
        (3, "trusted contains 3; expected classes, functions"),
    ],
)
def test_what_cannot_be_trusted_is_named(item: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        state.decode(state.encode([Outer]), trusted=[Outer, item])


def test_names_of_a_script_or_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    exec("class Net: pass", vars(script))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", script)
        blob = state.encode({"module": script.Net})
        assert state.decode(blob, trusted=[script.Net])["module"] is script.Net
    what_to_do = r"the script or notebook that fitted the model: define the name again"
    with pytest.raises(UntrustedClassError, match=what_to_do):
        state.decode(blob)
    with pytest.raises(UntrustedClassError, match=f"cannot be imported here.*{what_to_do}"):
        state.decode(blob, trusted=["__main__.Net"])


def test_trust_in_one_class_is_no_trust_in_another() -> None:
    with pytest.raises(UntrustedClassError, match=r"names '[\w.]+Outer\.Inner', which"):
        state.decode(state.encode([Outer, Outer.Inner]), trusted=[Outer])


def test_classes_as_values_are_digested_by_name() -> None:
    digests = {state.digest(Mine(cls)) for cls in CLASS_VALUES}
    assert len(digests) == len(CLASS_VALUES)
    assert state.digest(Mine(Frozen)) == state.digest(Mine(Frozen))


def test_class_that_its_module_no_longer_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Frozen
    monkeypatch.setitem(globals(), "Frozen", type("Frozen", (), {}))
    with pytest.raises(
        UnsupportedStateError, match=r"imported by name.*a class defined at the top"
    ):
        state.digest({"module": old})


def test_partial_of_a_class_of_the_caller() -> None:
    blob = state.encode(partial(Frozen, a=3))
    with pytest.raises(UntrustedClassError, match="Frozen"):
        state.decode(blob)
    assert state.decode(blob, trusted=[Frozen])() == Frozen(3)


def test_class_as_a_parameter_of_a_saved_model(tmp_path: Path) -> None:
    state.write_file(tmp_path / "model", Mine(Outer))
    with pytest.raises(UntrustedClassError, match="Outer"):
        state.read_file(tmp_path / "model", trusted=[Mine])
    assert state.read_file(tmp_path / "model", trusted=[Mine, Outer]).a is Outer


def test_own_state_is_used_both_ways() -> None:
    copied = state.decode(state.encode(Celsius(4.5)), trusted=[Celsius])
    assert copied.degrees == 4.5
    assert state.digest(Celsius(1.0)) == state.digest(Celsius(2.0))


def test_dataclass_of_the_package() -> None:
    value = Guarantee(kind="exact", reference="Theorem 1")
    copied = state.decode(state.encode(value))
    assert copied == value
    assert state.classes_of(value) == {Guarantee}


def test_registered_codec() -> None:
    state.register_codec(Fraction, lambda f: [f.numerator, f.denominator], lambda v: Fraction(*v))
    assert state.decode(state.encode({"x": Fraction(3, 9)})) == {"x": Fraction(1, 3)}
    assert state.digest(Fraction(2, 4)) == state.digest(Fraction(1, 2))


def test_partial_of_a_listed_function() -> None:
    copied = state.decode(state.encode(partial(np.clip, a_min=0, a_max=1)))
    assert copied(5) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Ridge(), Ridge()),
        (SGDClassifier(n_jobs=1), SGDClassifier(n_jobs=2)),
        (SGDClassifier(verbose=0), SGDClassifier(verbose=1)),
        ([Mine({"b": Mine(n_jobs=4)})], [Mine({"b": Mine(n_jobs=None)})]),
    ],
)
def test_settings_that_do_not_matter_are_not_digested(a: Any, b: Any) -> None:
    assert state.digest(a) == state.digest(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Ridge(), Ridge(alpha=2)),
        (SGDClassifier(random_state=0), SGDClassifier(random_state=1)),
        (Ridge(alpha=1), Ridge(alpha=1.0)),
        (Mine(Ridge()), Mine(LogisticRegression())),
        ({"n_jobs": 1}, {"n_jobs": 2}),
    ],
)
def test_everything_else_is_digested(a: Any, b: Any) -> None:
    assert state.digest(a) != state.digest(b)


def test_number_of_threads_is_not_digested() -> None:
    model = KMeans(2, n_init=1, random_state=0).fit(np.arange(8.0)[:, None])
    before = state.digest(model)
    model._n_threads += 1
    assert state.digest(model) == before


def test_caches_and_addresses_are_not_digested() -> None:
    binarizer = MultiLabelBinarizer().fit([["a"], ["b"]])
    hashing = HashingVectorizer(stop_words=["a"]).fit(["a b"])
    before = state.digest([binarizer, hashing])
    binarizer.transform([["a"]])
    hashing.transform(["a b"])
    assert state.digest([binarizer, hashing]) == before


def test_aliases_inside_an_estimator_stay_aliases() -> None:
    array = np.arange(3)
    model = Mine({"x": array, "y": [array], "z": array.copy()})
    copied = state.decode(state.encode(model), trusted=[Mine])
    assert copied.a["x"] is copied.a["y"][0]
    assert copied.a["x"] is not copied.a["z"]


def test_aliases_are_values_elsewhere() -> None:
    array = np.arange(3)
    assert state.encode([array, array]) == state.encode([array, array.copy()])
    first, second = state.decode(state.encode([array, array]))
    assert first is not second


def test_digest_does_not_see_aliases() -> None:
    array = np.arange(3)
    assert state.digest(Mine([array, array])) == state.digest(Mine([array, array.copy()]))


def test_aliases_among_keys_of_any_kind_and_order() -> None:
    x, y = np.arange(2), np.arange(3)
    model = Mine([{2: x, 1: y}, {"b": y, "a": x}, {(1, 2), (3,)}])
    copied = state.decode(state.encode(model), trusted=[Mine])
    assert copied.a[0][2] is copied.a[1]["a"]
    assert np.array_equal(copied.a[1]["b"], y)


def test_sets_of_objects_do_not_count_among_aliases() -> None:
    array = np.arange(2)
    model = Mine([{Frozen(1), Frozen(2), Frozen(3)}, array, array])
    copied = state.decode(state.encode(model), trusted=[Mine, Frozen])
    assert copied.a[0] == model.a[0]
    assert copied.a[1] is copied.a[2]


def test_training_goes_on_as_if_never_saved() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), np.arange(60) % 3
    model = SGDClassifier(average=10, random_state=0).partial_fit(X[:30], y[:30], classes=[0, 1, 2])
    again = state.decode(state.encode(model))
    for each in (model, again):
        each.partial_fit(X[30:], y[30:])
    assert state.digest(again) == state.digest(model)


SEARCHES = [
    GridSearchCV(Ridge(), {"alpha": [1]}),
    RandomizedSearchCV(Ridge(), {"alpha": [1]}),
    make_pipeline(StandardScaler(), GridSearchCV(Ridge(), {"alpha": [1]})),
]


@pytest.mark.parametrize("estimator", SEARCHES, ids=lambda e: type(e).__name__)
def test_searches_are_refused_with_a_way_out(estimator: Any) -> None:
    with pytest.raises(UnsupportedStateError, match=r"wall times.*GridSearchCV\(NaiveUnlearner"):
        state.ensure_supported(estimator)


@pytest.mark.parametrize(
    ("estimator", "reason"),
    [
        (Birch(), "circles"),
        (make_pipeline(StandardScaler(), memory="cache"), "forgotten rows.*memory=None"),
        (Mine(make_pipeline(StandardScaler(), memory="cache")), "forgotten rows"),
        (FunctionTransformer(lambda x: x), "top level of a .py file"),
        (FunctionTransformer("".join), "outside its attributes|name"),
    ],
)
def test_other_estimators_are_refused(estimator: Any, reason: str) -> None:
    with pytest.raises(UnsupportedStateError, match=reason):
        state.ensure_supported(estimator)


def test_supported_estimators_pass() -> None:
    fine = make_pipeline(StandardScaler(), RandomForestClassifier())
    assert state.ensure_supported(fine) is None  # type: ignore[func-returns-value]


def test_references_are_checked() -> None:
    from tests.state.forge import blob_of

    with pytest.raises(CorruptFileError, match="has no target"):
        state.decode(blob_of(Ref(0)))


def test_what_is_written_can_be_read_from_a_deep_stack(tmp_path: Path) -> None:
    model: Any = Ridge()
    for _ in range(78):
        model = FrozenEstimator(model)

    def copy_at(depth: int) -> list[Any]:
        if depth > 0:
            return copy_at(depth - 1)
        state.write_file(tmp_path / "deep", model)
        return [state.decode(state.encode(model)), state.read_file(tmp_path / "deep")]

    assert {state.digest(copy) for copy in copy_at(150)} == {state.digest(model)}
