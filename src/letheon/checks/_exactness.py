"""Checks of exact methods: whatever was asked, the model is that of a fresh fit."""

from typing import Any

import numpy as np

from letheon.checks._files import loaded_copy
from letheon.checks._people import (
    CANARY,
    People,
    answers,
    as_numbers,
    fit,
    fit_in_secret,
    has_noise,
    make_people,
    refit,
)

# What may differ between two approximate models that did the same: rounding, when one of them
# carried a cache from request to request and the other computed it anew from its rows.
_ROUNDING = 1e-6


def _assert_same_model(model: Any, fresh: Any, people: People, what: str) -> None:
    assert model.digest() == fresh.digest(), f"{what}: digests differ from a fresh fit"
    same = np.array_equal(answers(model, people.X), answers(fresh, people.X))
    assert same, f"{what}: digests agree but answers differ, so the digest misses learned state"
    assert sorted(model.ids_.tolist()) == sorted(fresh.ids_.tolist()), f"{what}: ids_ differ"


def check_forget_equals_retrain(estimator: Any) -> None:
    """Forgetting some people gives the model of a fresh fit on the others."""
    people = make_people(estimator)
    leaving = [*people.names[3:6], CANARY]
    model = fit(estimator, people)
    model.forget(leaving)
    rest = people.without(leaving)
    _assert_same_model(model, refit(model, rest), rest, "forget")


def check_forget_in_one_batch_equals_one_by_one(estimator: Any) -> None:
    """One request for many people equals many requests for one."""
    people = make_people(estimator)
    leaving = people.names[:4]
    batch, single = fit(estimator, people), fit(estimator, people)
    batch.forget(leaving)
    for name in leaving:
        single.forget([name])
    _assert_same_model(single, batch, people.without(leaving), "one by one")


def check_forget_order_does_not_matter(estimator: Any) -> None:
    """The order of requests leaves no trace."""
    people = make_people(estimator)
    leaving = people.names[5:9]
    forward, backward = fit(estimator, people), fit(estimator, people)
    for name in leaving:
        forward.forget([name])
    for name in reversed(leaving):
        backward.forget([name])
    _assert_same_model(forward, backward, people.without(leaving), "reverse order")


def check_learn_equals_fit(estimator: Any) -> None:
    """Learning people later equals having had them, last in order, from the start."""
    people = make_people(estimator)
    late = people.names[-3:]
    first, more = people.without(late), people.only(late)
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
    people = make_people(estimator)
    model = fit(estimator, people)
    copy = _loaded(model)
    # A twin and not the model itself, whose states on disk are those of the copy.
    twin = refit(model, people)
    for each in (copy, twin):
        each.forget(people.names[2:4])
    assert_alike = _assert_same_model if estimator.facts.exact else _assert_same_answers
    assert_alike(copy, twin, people, "forget after loading")
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


def _assert_same_answers(model: Any, twin: Any, people: People, what: str) -> None:
    said, expected = (as_numbers(answers(each, people.X)) for each in (model, twin))
    assert said.shape == expected.shape, f"{what}: answers of another shape"
    near = _ROUNDING * float(np.abs(expected).max())
    assert np.allclose(said, expected, rtol=_ROUNDING, atol=near), f"{what}: answers differ"
    assert model.ids_.tolist() == twin.ids_.tolist(), f"{what}: ids_ differ"
    assert model.n_rows_ == twin.n_rows_, f"{what}: numbers of rows differ"
