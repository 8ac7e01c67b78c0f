"""Checks of exact methods: whatever was asked, the model is that of a fresh fit."""

from typing import Any

import numpy as np

from letheon.checks._people import CANARY, People, answers, fit, make_people, refit


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
    """A saved and loaded model is the same model and forgets alike."""
    from letheon.checks._files import loaded_copy

    people = make_people(estimator)
    model = fit(estimator, people)
    copy = loaded_copy(model)
    assert copy.digest() == model.digest(), "loading changed the digest"
    # A twin and not the model itself, whose states on disk are those of the copy.
    twin = refit(model, people)
    for each in (copy, twin):
        each.forget(people.names[2:4])
    _assert_same_model(copy, twin, people, "forget after loading")
