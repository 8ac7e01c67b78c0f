"""Damaged boosters: refused by letheon, or by a separate process, and never a crash here."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from letheon import NaiveUnlearner, sandbox, state
from letheon.exceptions import CorruptFileError, MemoryLimitError, StateError
from letheon.state import Coded, MemoryBudget, _lightgbm, _xgboost
from letheon.state._boosters import CODECS, _load_and_predict
from letheon.state._decode import construct
from letheon.state._encode import to_tree
from tests.boosters.mutate import mutate

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": np.where(np.arange(200) % 7 == 0, np.nan, RNG.normal(size=200)),
        "c": pd.Categorical(RNG.choice(list("stuvwxyz"), 200)),
    }
)
Y = (FRAME["a"].fillna(1) + FRAME["c"].isin(["x", "y", "u"]) > 0.5).astype(int)
NAMES = {"xgboost": "xgboost.core.Booster", "lightgbm": "lightgbm.basic.Booster"}


def booster_of(library: str, target: Any = Y) -> Any:
    if library == "xgboost":
        model = xgboost.XGBClassifier(
            n_estimators=3, max_depth=3, enable_categorical=True, max_cat_to_onehot=1
        )
        return model.fit(FRAME, target).get_booster()
    options = {"min_data_per_group": 2, "cat_smooth": 1, "max_cat_to_onehot": 1}
    model = lightgbm.LGBMClassifier(n_estimators=3, num_leaves=6, n_jobs=1, verbose=-1, **options)
    return model.fit(FRAME, target).booster_


def plain_of(library: str, target: Any = Y) -> dict[str, Any]:
    plain: dict[str, Any] = CODECS[NAMES[library]].encode(booster_of(library, target))
    return plain


def build(library: str, plain: Any, trusted: tuple[str, ...] = ()) -> Any:
    node = Coded(NAMES[library], to_tree(plain))
    return construct(node, dict.fromkeys(trusted), MemoryBudget(10**5))


def _load_many(argument: tuple[str, list[Any]], report: Callable[[Any], None]) -> list[int]:
    """Return 1 for every booster that the library loads, and 0 for those that it refuses."""
    name, plains = argument
    loaded = []
    for number, plain in enumerate(plains):
        report(number)
        try:
            _load_and_predict((name, plain), None)
            loaded.append(1)
        except Exception:  # noqa: BLE001 - of any library
            loaded.append(0)
    return loaded


@pytest.mark.parametrize("library", NAMES)
def test_what_passes_the_checks_does_not_crash_the_library(library: str) -> None:
    rng, name = random.Random(5), NAMES[library]
    seeds = [plain_of(library), plain_of(library, Y + (FRAME["a"] > 1))]
    passed, n_refused = [], 0
    for _ in range(300):
        plain = mutate(rng.choice(seeds), rng)
        try:
            cost = CODECS[name].cost(object, plain)  # type: ignore[misc]
        except CorruptFileError:
            n_refused += 1
        else:
            passed += [plain] if cost < 1 << 26 else []
    places: list[Any] = []
    limits = sandbox.Limits(seconds=120.0)
    loaded = sandbox.call(_load_many, (name, passed), limits=limits, report=places.append)
    assert n_refused > 150
    assert len(places) == len(loaded) > 25
    assert sum(loaded) > 0.9 * len(loaded)  # the checks leave little for the library to refuse


@pytest.mark.parametrize("library", NAMES)
def test_every_wrong_index_is_refused(library: str) -> None:
    plain = plain_of(library)
    keys = {
        "xgboost": "left_children right_children split_indices split_nodes categories num_nodes "
        "num_splits split_sizes sorted_idx default_left",
        "lightgbm": "left_child right_child split_feature num_leaves num_cat cat_boundaries",
    }
    for key in keys[library].split():
        for place in range(len(plain[key])):
            changed = plain | {key: plain[key].copy()}
            changed[key][place] = 100
            with pytest.raises(CorruptFileError, match="does not contain a valid"):
                CODECS[NAMES[library]].cost(object, changed)  # type: ignore[misc]


@pytest.mark.parametrize("library", NAMES)
def test_the_first_feature_that_is_not_there_is_refused(library: str) -> None:
    plain = plain_of(library)
    key = "split_indices" if library == "xgboost" else "split_feature"
    plain[key] = plain[key].copy()
    plain[key][0] = len(plain["feature_names"])
    check = _xgboost.check_booster if library == "xgboost" else _lightgbm.check_booster
    with pytest.raises(CorruptFileError, match=key):
        check(object, plain)


@pytest.mark.parametrize("library", NAMES)
def test_a_cycle_is_refused(library: str) -> None:
    plain = plain_of(library)
    key = "left_children" if library == "xgboost" else "left_child"
    plain[key][1] = 0
    with pytest.raises(CorruptFileError, match="children"):
        build(library, plain)


@pytest.mark.parametrize("library", NAMES)
def test_a_node_below_itself_is_refused_although_each_node_has_one_parent(library: str) -> None:
    plain = plain_of(library)
    ending = "children" if library == "xgboost" else "child"
    names = [f"{side}_{ending}" for side in ("left", "right")]
    key = next(name for name in names if plain[name][0] > 0)
    children = plain[key] = plain[key].copy()
    child = children[0]
    assert children[child] != -1 or library == "lightgbm"  # not a leaf
    children[0], children[child] = children[child], child
    check = _xgboost.check_booster if library == "xgboost" else _lightgbm.check_booster
    with pytest.raises(CorruptFileError, match="children"):
        check(object, plain)


@pytest.mark.parametrize("library", NAMES)
def test_nothing_is_loaded_here_if_the_separate_process_fails(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plain_of(library)
    if library == "xgboost":
        plain["base_score"] = np.array([3.0], "f4")  # no probability: only XGBoost knows
    else:
        plain["feature_names"][0] = "="
    module = xgboost.core if library == "xgboost" else lightgbm.basic
    monkeypatch.setattr(module.Booster, "__init__", lambda *_, **__: pytest.fail("loaded here"))
    with pytest.raises(CorruptFileError, match=r"in a separate process.*so it was not loaded here"):
        build(library, plain)


@pytest.mark.parametrize("library", NAMES)
def test_a_trusted_class_needs_no_separate_process(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plain_of(library)
    monkeypatch.setattr(sandbox, "call", lambda *_, **__: pytest.fail("process started"))
    booster = build(library, plain, (NAMES[library],))
    assert state.digest(booster) == state.digest(booster_of(library))


def test_a_category_can_not_request_gigabytes() -> None:
    plain = plain_of("xgboost")
    plain |= {"enc": [], "sorted_idx": np.empty(0, "i4")}
    n_times = 200
    for key in ("split_sizes", "categories"):
        plain[key] = np.tile(plain[key], n_times)
    plain["categories"][:] = (1 << 24) - 1
    for key in ("num_nodes", "num_splits"):
        plain[key] = np.tile(plain[key], n_times)
    for key in plain:
        if isinstance(plain[key], np.ndarray) and key not in (
            ["split_sizes", "categories", "num_nodes", "num_splits", "base_score", "sorted_idx"]
        ):
            plain[key] = np.tile(plain[key], n_times)
    with pytest.raises(MemoryLimitError, match="max_memory"):
        build("xgboost", plain)


PARTS: list[tuple[str, str, Any]] = [
    ("_other_params", "LGBMClassifier", {"forcedsplits_filename": "/etc/hostname"}),
    ("boosting_type", "LGBMClassifier", "rf"),
    ("_n_classes", "LGBMClassifier", 10**12),
    ("_Booster", "LGBMClassifier", [1, 2]),
    ("n_classes_", "XGBClassifier", 10**12),
    ("kwargs", "XGBClassifier", {"updater": "shotgun"}),
    ("device", "XGBClassifier", "cuda"),
    ("callbacks", "XGBClassifier", [[1]]),
    ("predict", "XGBClassifier", 1),
]


@pytest.mark.parametrize(("attribute", "name", "value"), PARTS)
def test_an_estimator_with_a_wrong_part_is_refused(attribute: str, name: str, value: Any) -> None:
    package: Any = xgboost if name.startswith("XGB") else lightgbm
    estimator = getattr(package, name)(n_estimators=2, n_jobs=1)
    vars(estimator)[attribute] = value
    with pytest.raises(StateError):
        state.decode(state.encode(estimator))


def test_a_model_inside_the_sandbox_starts_no_other_process() -> None:
    content = state.encode(NaiveUnlearner(lightgbm.LGBMClassifier(n_jobs=1)).fit(FRAME, Y))
    limits = sandbox.Limits(seconds=120.0)
    assert sandbox.call(_digest_of, content, limits=limits) == state.digest(state.decode(content))
    assert not sandbox.is_inside()


def _digest_of(content: bytes, _: Any) -> str:
    assert sandbox.is_inside()
    return state.digest(state.decode(content))
