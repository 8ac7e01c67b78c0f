"""V4: an honest model is re-derived byte for byte, and nothing can be hidden in one."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, SGDClassifier

from letheon import NaiveUnlearner, SISAClassifier, state
from letheon.audit import check_rederivation, rederive
from letheon.audit._rederive import CannotRederiveError
from letheon.data import Rows
from tests.audit.people import EXACT, IDS, fitted, held, table, without

GONE = [1003, 1007, 1050]


def forgotten(kind: str) -> tuple[Any, Rows]:
    model, rows = fitted(kind)
    model.forget(GONE[:2])
    model.forget(GONE[2:])
    return model, without(rows, GONE)


def verdict(model: Any, rows: Rows, **options: Any) -> str:
    """Return what an auditor says who gets the model as a file."""
    content = state.encode(model)
    return check_rederivation(state.decode(content), rows, content=content, **options)[0].verdict


@pytest.mark.parametrize("kind", EXACT)
def test_honest_models_are_rederived_byte_for_byte(kind: str) -> None:
    model, rows = forgotten(kind)
    assert verdict(model, rows, same_place=True) == "pass"


@pytest.mark.parametrize("kind", EXACT)
def test_a_model_that_kept_a_forgotten_row_fails(kind: str) -> None:
    model, rows = fitted(kind)
    model.forget(GONE[:2])
    assert verdict(model, without(rows, GONE)) == "fail"


def hidden_in(model: Any, row: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of a model with a row in one attribute each, old or new, at two depths."""
    for name in [*vars(model), "note_", "tuning_"]:
        twin = copy.deepcopy(model)
        setattr(twin, name, row)
        yield name, twin
    for name, part in vars(model).items():
        if hasattr(part, "__dict__") and not isinstance(part, Rows):
            for inner in [*vars(part), "note_"]:
                twin = copy.deepcopy(model)
                vars(getattr(twin, name))[inner] = row
                yield f"{name}.{inner}", twin


def _encodes_alike(model: Any, other: Any) -> bool:
    """Whether an attribute never reaches the file, such as a cache."""
    try:
        return state.encode(model) == state.encode(other)
    except Exception:  # noqa: BLE001 (such a model cannot even be written)
        return True


@pytest.mark.parametrize(
    "row",
    [np.array([0.25, -1.5, 3.125, 0.5]), "0.25;-1.5;3.125", 0x3FD0_0000_BFF8_0000_4009 << 64],
    ids=["array", "text", "number"],
)
@pytest.mark.parametrize("kind", ["naive", "sisa", "forest", "pipeline"])
def test_a_row_hidden_in_any_attribute_fails(kind: str, row: Any) -> None:
    model, rows = forgotten(kind)
    places = [
        (place, twin) for place, twin in hidden_in(model, row) if not _encodes_alike(model, twin)
    ]
    assert len(places) > 8
    comparison = {place: _judged(twin, rows) for place, twin in places}
    assert {place for place, said in comparison.items() if said != "fail"} == set()


def _judged(model: Any, rows: Rows) -> str:
    """Return the verdict; a file that cannot be read back is none to accept."""
    content = state.encode(model)
    try:
        again = state.decode(content)
    except Exception:  # noqa: BLE001 (a file that cannot be read is not accepted)
        return "fail"
    return check_rederivation(again, rows, content=content, same_place=True)[0].verdict


def test_a_row_hidden_deep_in_a_template_fails() -> None:
    model, rows = forgotten("sisa")
    model.estimator.coef_ = np.array([0.25, -1.5])
    assert verdict(model, rows) == "fail"


@pytest.mark.parametrize("name", ["n_jobs", "verbose", "random_state"])
def test_a_large_number_in_a_nested_neutral_setting_fails(name: str) -> None:
    X, y = table()
    inner = SGDClassifier(**{name: 7 << 200})
    honest = SISAClassifier(SGDClassifier(), n_shards=2, random_state=1).fit(X, y, ids=IDS)
    honest.estimator = inner
    assert _judged(honest, held(X, y, IDS)) == "fail"


@pytest.mark.parametrize(("name", "value"), [("verbose", 3), ("n_jobs", 2), ("random_state", None)])
def test_small_numbers_in_many_copies_carry_nothing(name: str, value: Any) -> None:
    X, y = table()
    model = SISAClassifier(SGDClassifier(), n_shards=3, random_state=1).fit(X, y, ids=IDS)
    assert verdict(model, held(X, y, IDS)) == "pass"
    setattr(model.estimators_[1], name, value)
    assert verdict(model, held(X, y, IDS)) == "fail"


def test_declared_settings_of_copies_pass() -> None:
    X, y = table()
    model = SISAClassifier(SGDClassifier(n_jobs=2), n_shards=3, n_jobs=1, random_state=1)
    assert verdict(model.fit(X, y, ids=IDS), held(X, y, IDS)) == "pass"


def test_plain_values_of_neutral_settings_pass() -> None:
    X, y = table()
    model = NaiveUnlearner(SGDClassifier(verbose=0, n_jobs=1), random_state=np.int64(9))
    model.fit(X, y, ids=IDS)
    assert verdict(model, held(X, y, IDS)) == "pass"


def test_a_generator_as_seed_is_refused_with_a_reason() -> None:
    X, y = table()
    model = NaiveUnlearner(LogisticRegression(), random_state=3).fit(X, y, ids=IDS)
    model.random_state = np.random.RandomState(0)
    with pytest.raises(CannotRederiveError, match="random_state"):
        rederive(model, held(X, y, IDS))


def test_other_libraries_are_no_failure_and_no_pass() -> None:
    model, rows = forgotten("naive")
    model.environment_ = {**model.environment_, "numpy": "1.0"}
    model.estimator_.coef_ *= 1 + 1e-14
    content = state.encode(model)
    comparison, _ = check_rederivation(state.decode(content), rows, content=content)
    assert (comparison.verdict, comparison.details["rounding"]) == ("skipped", True)
    assert "numpy 1.0" in comparison.reason


def test_other_libraries_do_not_excuse_another_row() -> None:
    model, rows = fitted("naive")
    old = model.estimator_
    model.forget(GONE)
    model.environment_ = {**model.environment_, "numpy": "1.0"}
    assert verdict(model, without(rows, GONE)) == "pass"  # the bytes are those of a fresh fit
    model.estimator_ = old
    comparison, _ = check_rederivation(model, without(rows, GONE))
    assert comparison.verdict == "fail"
    assert comparison.details["rounding"] is False
    assert "more than the tolerance of its method, at estimator_.coef_" in comparison.reason


def test_another_format_of_letheon_is_no_other_library() -> None:
    """Its name would be a place to write something."""
    model, rows = forgotten("naive")
    name = f"{model.environment_['letheon']}1"
    model.environment_ = {**model.environment_, "letheon": name}
    assert verdict(model, rows) == "fail"


def test_the_certificate_settles_where_a_model_was_made() -> None:
    model, rows = forgotten("naive")
    model.environment_ = {**model.environment_, "numpy": "1.0"}
    assert verdict(model, rows, same_place=True) == "fail"


def test_bytes_after_the_model_fail() -> None:
    model, rows = forgotten("forest")
    comparison, _ = check_rederivation(model, rows, content=state.encode(model) + b"row")
    assert comparison.verdict == "fail"


def test_settings_of_scikit_learn_are_those_of_the_fit() -> None:
    from sklearn import config_context

    X, y = table()
    with config_context(assume_finite=True):
        model = NaiveUnlearner(LogisticRegression()).fit(X, y, ids=IDS)
    assert verdict(model, held(X, y, IDS)) == "pass"


def test_frames_and_nested_estimators_are_rederived() -> None:
    pd = pytest.importorskip("pandas")
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    X, y = table()
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame["town"] = np.where(X[:, 1] > 0, "here", "there")
    coded = make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough")
    people = [f"person-{number}" for number in IDS]
    model = NaiveUnlearner(make_pipeline(coded, LogisticRegression()))
    model.fit(frame, y, ids=people).forget(people[:3])
    rows = held(frame, y, people)
    assert verdict(model, without(rows, people[:3])) == "pass"
    assert verdict(model, without(rows, people[:4])) == "fail"


def test_reasons_name_places_and_no_values() -> None:
    model, rows = fitted("naive")
    comparison, _ = check_rederivation(model, without(rows, GONE))
    assert any(place.startswith("rows_") for place in comparison.details["places"])
    assert "1003" not in comparison.reason
