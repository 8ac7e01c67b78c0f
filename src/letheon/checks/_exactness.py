"""Checks of state: exact models are those of a fresh fit, and a digest covers everything."""

import dataclasses
import pickle
from typing import Any

import numpy as np

from letheon.base import NEUTRAL_PARAMETERS, ForgetMixin, neutral_parameters
from letheon.checks._people import (
    CANARY,
    answers,
    as_numbers,
    fit,
    fit_in_secret,
    fit_people,
    forget_each,
    has_noise,
    loaded_copy,
    make_people,
    refit,
)
from letheon.checks._walk import leaves
from letheon.data import People

# What may differ between two approximate models that did the same: rounding, when one of them
# carried a cache from request to request and the other computed it anew from its rows.
_ROUNDING = 1e-6
# How many threads or which cache a library used: a matter of the machine.
_OF_THE_MACHINE = NEUTRAL_PARAMETERS | {"memory", "n_threads", "_n_threads"}


def _assert_same_model(model: Any, fresh: Any, people: People, what: str) -> None:
    assert model.digest() == fresh.digest(), f"{what}: digests differ from a fresh fit"
    same = np.array_equal(answers(model, people.X), answers(fresh, people.X))
    assert same, f"{what}: digests agree but answers differ, so the digest misses learned state"
    assert sorted(model.ids_.tolist()) == sorted(fresh.ids_.tolist()), f"{what}: ids_ differ"


def check_forget_equals_retrain(estimator: Any) -> None:
    """Forgetting some people gives the model of a fresh fit on the others."""
    people, model = fit_people(estimator)
    leaving = [*people.names[3:6], CANARY]
    model.forget(leaving)
    rest = people.without(leaving)
    _assert_same_model(model, refit(model, rest), rest, "forget")


def check_forget_in_one_batch_equals_one_by_one(estimator: Any) -> None:
    """One request for many people equals many requests for one."""
    people, batch = fit_people(estimator)
    leaving = people.names[:4]
    batch.forget(leaving)
    single = forget_each(fit(estimator, people), leaving)
    _assert_same_model(single, batch, people.without(leaving), "one by one")


def check_forget_order_does_not_matter(estimator: Any) -> None:
    """The order of requests leaves no trace."""
    people, forward = fit_people(estimator)
    leaving = people.names[5:9]
    forget_each(forward, leaving)
    backward = forget_each(fit(estimator, people), leaving[::-1])
    _assert_same_model(forward, backward, people.without(leaving), "reverse order")


def check_learn_equals_fit(estimator: Any) -> None:
    """Learning people later equals having had them, last in order, from the start."""
    people = make_people(estimator)
    late = people.names[-3:]
    first, more = people.without(late), people.of(late)
    model = fit(estimator, first)
    model.learn(more.X, more.y, ids=more.ids)
    y = None if first.y is None or more.y is None else np.concatenate([first.y, more.y])
    everyone = People(np.vstack([first.X, more.X]), y, np.concatenate([first.ids, more.ids]))
    _assert_same_model(model, refit(model, everyone), everyone, "learn")
    model.forget(late)
    _assert_same_model(model, refit(model, first), first, "learn, then forget")


def check_save_load_then_forget(estimator: Any) -> None:
    """A saved and loaded model is the same model and forgets alike.

    Exact models have the same digest afterwards, others the same answers up to rounding. Secret
    noise and the budget spent so far survive the file.
    """
    people, model = fit_people(estimator)
    copy = _loaded(model)
    # A twin and not the model itself, whose states on disk are those of the copy.
    twin = refit(model, people)
    for each in (copy, twin):
        each.forget(people.names[2:4])
    if estimator.facts.exact:
        _assert_same_model(copy, twin, people, "forget after loading")
    else:
        said, expected = (as_numbers(answers(each, people.X)) for each in (copy, twin))
        assert said.shape == expected.shape, "forget after loading: answers of another shape"
        near = _ROUNDING * float(np.abs(expected).max())
        is_near = np.allclose(said, expected, rtol=_ROUNDING, atol=near)
        assert is_near, "forget after loading: answers differ"
        assert copy.ids_.tolist() == twin.ids_.tolist(), "forget after loading: ids_ differ"
        assert copy.n_rows_ == twin.n_rows_, "forget after loading: numbers of rows differ"
    if has_noise(estimator):
        used = fit_in_secret(estimator, people)
        used.forget(people.names[:2])
        _loaded(used)


def _loaded(model: Any) -> Any:
    """Return the model after a round trip through a file, which must not change it."""
    copy = loaded_copy(model)
    assert copy.digest() == model.digest(), "loading changed the digest"
    assert copy.guarantee_ == model.guarantee_, "loading changed the guarantee"
    return copy


def check_digest_depends_on_state(estimator: Any) -> None:
    """A change of any stored number, text, id or label changes the digest."""
    model = fit(estimator, make_people(estimator))
    copy = pickle.loads(pickle.dumps(model))
    digest = model.digest()
    assert copy.digest() == digest, "a pickled copy has another digest"
    for leaf in list(leaves(copy, attributes=_digested, brief=True)):
        changed = another_value(leaf.value)
        if leaf.put is not None and changed is not None:
            leaf.put(changed)
            assert _digest(copy) != digest, f"changing {leaf.path} does not change the digest"
            leaf.put(leaf.value)
    other = fit(estimator, make_people(estimator, seed=1))
    assert other.digest() != digest, "models of different people have the same digest"


def _digest(model: Any) -> str | None:
    """Return the digest; None when the changed state is refused, which is noticing it too."""
    try:
        digest: str = model.digest()
    except (ValueError, TypeError, IndexError):
        return None
    return digest


def _digested(value: Any) -> dict[str, Any]:
    """Attributes of an object that a digest must cover.

    An estimator cannot excuse its state by a `_digest_state` of its own: only what it names in
    `_not_digested` and `_neutral_parameters`, and settings that never change a result, are left
    out.
    """
    own = vars(value)
    names: Any = own.keys() - _OF_THE_MACHINE
    if isinstance(value, ForgetMixin):
        names = own.keys() - neutral_parameters(value) - value._not_digested
    elif hasattr(type(value), "_digest_state"):
        names = value._digest_state()
    elif hasattr(type(value), "_to_state"):
        names = value._to_state()
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    return {name: own[name] for name in sorted(names) if name in own}


def another_value(value: Any) -> Any:
    """Return a different value of the same kind; None where there is no telling."""
    if isinstance(value, np.ndarray):
        if value.size == 0 or value.dtype.kind not in "fiubUS":
            return None
        changed, first = value.copy(), value.flat[0]
        # a longer text would be cut
        changed.flat[0] = first[:-1] if value.dtype.kind in "US" and first else another_value(first)
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
