"""Checks of conduct: errors change nothing, receipts tell the truth, predictions are pure."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from letheon.base import neutral_parameters
from letheon.checks._exactness import another_value
from letheon.checks._people import (
    answers,
    fit,
    fit_in_secret,
    fit_people,
    has_noise,
    make_people,
    refit,
    saved_bytes,
)
from letheon.data import People
from letheon.exceptions import ChangedParametersError, EmptyModelError, UnknownIdError

_KINDS = (float, int, bool, str)
_PATIENCE_S = 0.5
_MOST_READINGS = 500
_DEPTH = 3
Ask = Callable[[], Any]


def _require_refusal(error: type[Exception], model: Any, ids: list[Any], what: str) -> None:
    try:
        model.forget(ids)
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{what} must raise {error.__name__}, not {other!r}") from other
    raise AssertionError(f"{what} must raise {error.__name__}")


def check_forget_unknown_id_raises(estimator: Any) -> None:
    """An id that nobody has is refused by name, whatever its kind."""
    _, model = fit_people(estimator)
    _require_refusal(UnknownIdError, model, ["nobody"], "an unknown id")
    _require_refusal(UnknownIdError, model, [17], "an int id where ids are str")


def check_forget_twice_raises(estimator: Any) -> None:
    """A forgotten person is unknown afterwards."""
    people, model = fit_people(estimator)
    first = people.names[:1]
    model.forget(first)
    _require_refusal(UnknownIdError, model, first, "forgetting the same person again")


def _watch_for_changes(model: Any, people: People) -> Callable[[str], None]:
    """Return a check that digest, file, answers and ids are as they are now."""
    digest, file, said = model.digest(), saved_bytes(model), answers(model, people.X)

    def require(what: str) -> None:
        assert np.array_equal(answers(model, people.X), said), f"{what} changed answers"
        assert model.digest() == digest, f"{what} changed the digest"
        assert saved_bytes(model) == file, f"{what} changed the saved file"
        assert sorted(model.ids_.tolist()) == sorted(people.names), f"{what} lost people"

    return require


def check_forget_failure_leaves_model_unchanged(estimator: Any) -> None:
    """After every kind of refusal the model and its file are as they were."""
    people, model = fit_people(estimator)
    require_unchanged = _watch_for_changes(model, people)
    refusals: list[tuple[type[Exception], list[Any]]] = [
        (UnknownIdError, [people.names[0], "nobody"]),
        (EmptyModelError, people.names),
        (TypeError, [people.names[0], None]),
        (TypeError, [1.5]),
    ]
    for error, ids in refusals:
        what = f"forgetting {len(ids)} id(s) that cannot be forgotten"
        _require_refusal(error, model, ids, what)
        require_unchanged(f"a refused forget ({error.__name__})")


def check_forget_nobody_is_a_no_op(estimator: Any) -> None:
    """An empty request changes nothing and has a receipt."""
    _, model = fit_people(estimator)
    digest = model.digest()
    receipt = model.forget([])
    assert (receipt.n_ids, receipt.n_rows, receipt.work) == (0, 0, 0.0), f"not empty: {receipt}"
    assert model.digest() == digest, "an empty forget changed the model"


def check_forget_removes_all_rows_of_a_person(estimator: Any) -> None:
    """Every row of a person goes and stays away, and repeated ids count once."""
    people, model = fit_people(estimator)
    name = max(people.names, key=people.ids.tolist().count)
    receipt = model.forget([name, name])
    owned = people.ids.tolist().count(name)
    assert (receipt.n_ids, receipt.n_rows) == (1, owned), f"wrong numbers in {receipt}"
    assert model.n_rows_ == len(people.ids) - owned, "some rows of the person are still held"
    assert name not in model.ids_.tolist(), "the person is still in ids_"
    next_one = next(other for other in people.names if other != name)
    model.forget([next_one])
    expected = sorted(set(people.names) - {name, next_one})
    assert model.ids_.tolist() == expected, "after another request, ids_ are not those remaining"
    n_rows = len(people.without([name, next_one]).ids)
    assert model.n_rows_ == n_rows, "after another request, rows of forgotten people are back"


def check_receipt_digest_matches_model(estimator: Any) -> None:
    """Digests in a receipt are those of the model before and after, and only when asked for."""
    people, model = fit_people(estimator)
    before = model.digest()
    receipt = model.forget(people.names[:2], digest=True)
    assert receipt.digest_before == before, "digest_before is not that of the model before"
    assert receipt.digest_after == model.digest(), "digest_after is not that of the model after"
    assert receipt.digest_after != before, "the digest did not change though rows left"
    plain = model.forget(people.names[2:3])
    assert plain.digest_before is None, "a digest nobody asked for"
    assert plain.digest_after is None, "a digest nobody asked for"
    assert people.names[0] not in repr(receipt), "the receipt names a person"


def check_forget_last_of_class(estimator: Any) -> None:
    """When the last row of a class leaves, `classes_` shrinks as in a retrain."""
    people, model = fit_people(estimator)
    gone = people.y[0]
    holders = [name for name in people.names if gone in people.y[people.ids == name]]
    model.forget(holders)
    fresh = refit(model, people.without(holders))
    assert gone not in model.classes_.tolist(), f"class {gone!r} has no row but is in classes_"
    assert np.array_equal(model.classes_, fresh.classes_), "classes_ differ from a fresh fit"
    said, expected = answers(model, people.X), answers(fresh, people.X)
    assert said.shape == expected.shape, "answers still have room for the class"


def check_predict_is_pure(estimator: Any) -> None:
    """Asking the model changes neither it nor its answers."""
    people, model = fit_people(estimator)
    require_unchanged = _watch_for_changes(model, people)
    answers(model, people.X)
    require_unchanged("predict")


def check_guarantee_is_honest(estimator: Any) -> None:
    """No model claims more than its method declares, with repeatable noise or without."""
    for heading in ("Claim", "Assumptions", "Removal"):
        assert f"**{heading}" in estimator.facts.definition, f"the definition has no {heading}"
    people = make_people(estimator)
    for train in (fit, fit_in_secret) if has_noise(estimator) else (fit,):
        model = train(estimator, people)
        _require_permitted_claim(model)
        receipt = model.forget(people.names[:1])
        assert receipt.guarantee == model.guarantee_, "receipt and model differ"
        _require_permitted_claim(model)


def _require_permitted_claim(model: Any) -> None:
    claim, facts = model.guarantee_, model.facts
    assert facts.exact or claim.kind != "exact", "an approximate method claims to be exact"
    assert claim.requests == "oblivious" or facts.requests == "adaptive", "claims adaptive requests"
    assert claim.releases in (facts.releases, "latest-only"), "claims more releases than permitted"
    overdrawn = None not in (claim.spent, claim.budget) and claim.spent > claim.budget
    assert not overdrawn, f"spent {claim.spent} of {claim.budget}, and still claims a certificate"


def check_changed_parameters_are_noticed(estimator: Any) -> None:
    """Settings changed after fit are refused, whatever their kind, until they are set back."""
    people, model = fit_people(estimator)
    for name, value in _one_of_each_kind(model).items():
        # A nested estimator or another object gives way to None, and None to a number.
        is_plain = isinstance(value, bool | int | float | str)
        other = another_value(value) if is_plain else (1 if value is None else None)
        model.set_params(**{name: other})
        what = f"forget after fit with {name} changed from {value!r} to {other!r}"
        _require_refusal(ChangedParametersError, model, people.names[:1], what)
        model.set_params(**{name: value})
    receipt = model.forget(people.names[:1])
    assert receipt.n_ids == 1, "with all parameters set back, forget did nothing"


def _one_of_each_kind(model: Any) -> dict[str, Any]:
    """Return one parameter of each plain kind; None, or any at all, only where there is none.

    Empty only for an estimator that has no parameters that could change a result.
    """
    neutral = neutral_parameters(model)
    settings = {
        name: value
        for name, value in sorted(model.get_params(deep=True).items())
        if name.rpartition("__")[2] not in neutral
    }
    first = {type(settings[name]): name for name in reversed(settings)}
    plain = [first[kind] for kind in _KINDS if kind in first]
    unset = [first[type(None)]] if type(None) in first else list(settings)[:1]
    return {name: settings[name] for name in plain or unset}


def check_predict_while_forgetting(estimator: Any) -> None:
    """A concurrent reader sees the model before or after a request, never a mixture.

    One reader asks as often as it can; another asks after every line that a method of the model
    runs, and whenever an attribute of the model was replaced.
    """
    people = make_people(estimator)
    for watch in (_often, _after_every_line):
        model = fit(estimator, people)
        before = answers(model, people.X)
        with watch(partial(answers, model, people.X), model) as seen:
            model.forget(people.names[:1])
        allowed = [before, answers(model, people.X)]
        failed = [said for said in seen if isinstance(said, Exception)]
        assert not failed, f"a concurrent reader failed {len(failed)} time(s): {failed[0]!r}"
        mixed = [said for said in seen if not any(np.array_equal(said, fine) for fine in allowed)]
        assert not mixed, f"{len(mixed)} of {len(seen)} answers were of neither model"


def _try(ask: Ask) -> Any:
    """Return the answer, or the error instead of it."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001  (whatever it is, the check reports it)
        return error


@contextmanager
def _often(ask: Ask, _: Any) -> Iterator[list[Any]]:
    """Ask again and again in another thread, with threads that change places often."""
    seen: list[Any] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set() and len(seen) < _MOST_READINGS:
            seen.append(_try(ask))

    reader, interval = threading.Thread(target=read), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader.start()
    try:
        yield seen
    finally:
        stop.set()
        reader.join()
        sys.setswitchinterval(interval)


@contextmanager
def _after_every_line(ask: Ask, model: Any) -> Iterator[list[Any]]:
    """Stop the forgetting thread after every line of the model's own and let another one ask."""
    previous = sys.gettrace()
    with ThreadPoolExecutor(1) as pool:
        stops = _Stops(model, lambda: pool.submit(_try, ask))
        sys.settrace(stops.on_call)
        try:
            yield stops.seen
        finally:
            sys.settrace(previous)
    stops.collect()


class _Stops:
    """A trace function; it runs in the forgetting thread, between two of its lines."""

    def __init__(self, model: Any, ask: Callable[[], "Future[Any]"]) -> None:
        self.seen: list[Any] = []
        self._model = model
        self._ask = ask
        self._waiting: Future[Any] | None = None
        self._readings = {True: 0, False: 0}
        self._parts = self._identity()

    def on_call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        """Follow methods of the model, and what a commit calls."""
        if not (self._is_method(frame) or self._in_commit(frame)):
            return None
        frame.f_trace_opcodes = True  # `self.a, self.b = a, b` is one line and two steps
        return self._on_step

    def collect(self) -> None:
        """Take the answer of a reader that waited for the forgetting to end."""
        if self._waiting is not None:
            self.seen.append(self._waiting.result())

    def _on_step(self, frame: FrameType, event: str, _arg: Any) -> Any:
        parts = self._identity()
        if event != "opcode" or parts != self._parts:
            self._parts = parts
            self._read(self._in_commit(frame))
        return self._on_step

    def _read(self, in_commit: bool) -> None:
        # Counted apart, so that a long preparation leaves enough for the commit.
        if self._waiting is not None or self._readings[in_commit] >= _MOST_READINGS:
            return
        self._readings[in_commit] += 1
        asked = self._ask()
        try:
            self.seen.append(asked.result(timeout=_PATIENCE_S))
        except StillWaiting:  # the reader waits for the model's lock, as it may
            self._waiting = asked

    def _identity(self) -> list[int]:
        """Which objects are the attributes of the model, and theirs."""
        own = list(vars(self._model).values())
        theirs = [part for value in own for part in getattr(value, "__dict__", {}).values()]
        return [id(part) for part in (*own, *theirs)]

    def _is_method(self, frame: FrameType) -> bool:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        return bool(names) and frame.f_locals.get(names[0]) is self._model

    @staticmethod
    def _in_commit(frame: FrameType) -> bool:
        caller: FrameType | None = frame
        for _ in range(_DEPTH + 1):
            if caller is None:
                return False
            if caller.f_code.co_name == "_commit":
                return True
            caller = caller.f_back
        return False
