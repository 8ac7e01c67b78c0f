"""Checks of state: exact models equal a fresh fit, and the digest covers all learned state."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import scipy.sparse as sp

from letheon import state
from letheon.base import NEUTRAL_PARAMETERS, ForgetMixin, neutral_parameters
from letheon.checks._people import (
    CANARY,
    as_numbers,
    fit,
    fit_people,
    fit_with_secret_noise,
    forget_each,
    get_outputs,
    has_secret_noise,
    load_copy,
    make_people,
    refit,
)
from letheon.checks._walk import iter_leaves
from letheon.data import People

# Two approximate models with the same requests may differ by rounding: one may keep a cache between
# requests, while the other computes it from its rows.
_ROUNDING = 1e-6
# Attributes that depend on the machine: number of threads, caches of libraries.
_OF_THE_MACHINE = NEUTRAL_PARAMETERS | {"memory", "n_threads", "_n_threads"}
_OF_SPARSE_ARRAYS = frozenset({"data", "indices", "indptr", "_shape"})


def _assert_same_model(model: Any, fresh: Any, people: People, action: str) -> None:
    assert model.digest() == fresh.digest(), f"{action}: digests differ from a fresh fit"
    same = np.array_equal(get_outputs(model, people.X), get_outputs(fresh, people.X))
    assert same, f"{action}: digests agree but outputs differ, so the digest misses learned state"
    assert sorted(model.ids_.tolist()) == sorted(fresh.ids_.tolist()), f"{action}: ids_ differ"


def check_forget_equals_retrain(estimator: Any) -> None:
    """Check that forgetting some people gives the model of a fresh fit on the remaining rows."""
    people, model = fit_people(estimator)
    leaving = [*people.unique_ids[3:6], CANARY]
    model.forget(leaving)
    rest = people.without(leaving)
    _assert_same_model(model, refit(model, rest), rest, "forget")


def check_forget_in_one_batch_equals_one_by_one(estimator: Any) -> None:
    """Check that one request for many people gives the same model as one request per person."""
    people, batch = fit_people(estimator)
    leaving = people.unique_ids[:4]
    batch.forget(leaving)
    single = forget_each(fit(estimator, people), leaving)
    _assert_same_model(single, batch, people.without(leaving), "one by one")


def check_forget_order_does_not_matter(estimator: Any) -> None:
    """Check that the order of requests does not change the model."""
    people, forward = fit_people(estimator)
    leaving = people.unique_ids[5:9]
    forget_each(forward, leaving)
    backward = forget_each(fit(estimator, people), leaving[::-1])
    _assert_same_model(forward, backward, people.without(leaving), "reverse order")


def check_learn_equals_fit(estimator: Any) -> None:
    """Check that `learn` gives the model of a fresh fit on the old rows, then the new rows."""
    people = make_people(estimator)
    late = people.unique_ids[-3:]
    first, more = people.without(late), people.rows_of(late)
    model = fit(estimator, first)
    model.learn(more.X, more.y, ids=more.ids)
    y = None if first.y is None or more.y is None else np.concatenate([first.y, more.y])
    everyone = People(np.vstack([first.X, more.X]), y, np.concatenate([first.ids, more.ids]))
    _assert_same_model(model, refit(model, everyone), everyone, "learn")
    model.forget(late)
    _assert_same_model(model, refit(model, first), first, "learn, then forget")


def check_save_load_then_forget(estimator: Any) -> None:
    """Check that a saved and loaded model is unchanged and forgets in the same way.

    After `forget`, exact models must have the same digest, and other models the same outputs up to
    rounding. The file must preserve secret noise and the spent budget.
    """
    people, model = fit_people(estimator)
    copy = _check_round_trip(model)
    # A second model is used, because the first shares its state on disk with the copy.
    second = refit(model, people)
    for each in (copy, second):
        each.forget(people.unique_ids[2:4])
    if estimator.facts.exact:
        _assert_same_model(copy, second, people, "forget after loading")
    else:
        outputs, expected = (as_numbers(get_outputs(each, people.X)) for each in (copy, second))
        assert outputs.shape == expected.shape, "forget after loading: outputs have another shape"
        near = _ROUNDING * float(np.abs(expected).max())
        is_near = np.allclose(outputs, expected, rtol=_ROUNDING, atol=near)
        assert is_near, "forget after loading: outputs differ"
        assert copy.ids_.tolist() == second.ids_.tolist(), "forget after loading: ids_ differ"
        assert copy.n_rows_ == second.n_rows_, "forget after loading: numbers of rows differ"
    if has_secret_noise(estimator):
        used = fit_with_secret_noise(estimator, people)
        used.forget(people.unique_ids[:2])
        _check_round_trip(used)


def _check_round_trip(model: Any) -> Any:
    """Save and load a model; raise `AssertionError` if its digest or guarantee changed."""
    copy = load_copy(model)
    assert copy.digest() == model.digest(), "loading changed the digest"
    assert copy.guarantee_ == model.guarantee_, "loading changed the guarantee"
    return copy


def check_digest_depends_on_state(estimator: Any) -> None:
    """Check that the digest depends on every stored number, text, id and label."""
    model = fit(estimator, make_people(estimator))
    copy = pickle.loads(pickle.dumps(model))
    digest = model.digest()
    assert copy.digest() == digest, "a pickled copy has another digest"
    for leaf in list(iter_leaves(copy, attributes=_get_digested_attributes, brief=True)):
        changed = change_value(leaf.value)
        if leaf.put is not None and changed is not None:
            leaf.put(changed)
            assert _try_digest(copy) != digest, f"changing {leaf.path} does not change the digest"
            leaf.put(leaf.value)
    other = fit(estimator, make_people(estimator, seed=1))
    assert other.digest() != digest, "models of different people have the same digest"


def _try_digest(model: Any) -> str | None:
    """Return the digest, or None if computing it raises, which counts as a different digest."""
    try:
        digest: str = model.digest()
    except (ValueError, TypeError, IndexError):
        return None
    return digest


def _get_digested_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that a digest must cover.

    An overridden `_digest_state` cannot exclude state. Only names in `_not_digested` and
    `_neutral_parameters`, and settings that never change a result, are excluded.
    """
    codec = state.codec_of(type(value))
    if codec is not None and codec.trial is not None:
        return {}  # a compiled model of another library; its Python attributes are not saved
    own = vars(value)
    names: Any = own.keys() - _OF_THE_MACHINE
    if sp.issparse(value):
        names &= _OF_SPARSE_ARRAYS
    if isinstance(value, ForgetMixin):
        names = own.keys() - neutral_parameters(value) - value._not_digested
    elif hasattr(type(value), "_digest_state"):
        names = value._digest_state()
    elif hasattr(type(value), "_to_state"):
        names = value._to_state()
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    return {name: own[name] for name in sorted(names) if name in own}


def change_value(value: Any) -> Any:
    """Return a different value of the same type, or None for other types."""
    if isinstance(value, np.ndarray):
        if value.size == 0 or value.dtype.kind not in "fiubUS":
            return None
        changed, first = value.copy(), value.flat[0]
        # The same length, because a longer text would be truncated.
        changed.flat[0] = first[:-1] if value.dtype.kind in "US" and first else change_value(first)
        return changed
    if isinstance(value, bool | np.bool):
        return type(value)(not value)
    if isinstance(value, str | np.bytes_):
        return type(value)(f"{value}x" if isinstance(value, str) else value + b"x")
    if isinstance(value, int | np.integer):
        return value + 1 if isinstance(value, int) else value ^ 1
    is_float = isinstance(value, float | np.floating)
    other = value * 2 + 1 if is_float and np.isfinite(value) and value != -1 else 0.0
    return type(value)(other) if is_float else None
