"""Checks of behaviour: errors change nothing, receipts are correct, predictions are pure."""

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
from letheon.checks._exactness import change_value
from letheon.checks._people import (
    fit,
    fit_people,
    fit_with_secret_noise,
    get_outputs,
    has_secret_noise,
    make_people,
    refit,
    save_to_bytes,
)
from letheon.data import People
from letheon.exceptions import ChangedParametersError, EmptyModelError, UnknownIdError

_KINDS = (float, int, bool, str)
_PATIENCE_S = 0.5
_MOST_READINGS = 500
_DEPTH = 3
Ask = Callable[[], Any]


def _require_refusal(error: type[Exception], model: Any, ids: list[Any], action: str) -> None:
    try:
        model.forget(ids)
    except error:
        return
    except Exception as other:
        raise AssertionError(
            f"{action} must raise {error.__name__}, but raised {other!r}"
        ) from other
    raise AssertionError(f"{action} must raise {error.__name__}, but raised nothing")


def check_forget_unknown_id_raises(estimator: Any) -> None:
    """Check that `forget` raises `UnknownIdError` for an unknown id, whatever its type."""
    _, model = fit_people(estimator)
    _require_refusal(UnknownIdError, model, ["unknown"], "an unknown id")
    _require_refusal(UnknownIdError, model, [17], "an int id where ids are str")


def check_forget_twice_raises(estimator: Any) -> None:
    """Check that forgetting the same person again raises `UnknownIdError`."""
    people, model = fit_people(estimator)
    first = people.unique_ids[:1]
    model.forget(first)
    _require_refusal(UnknownIdError, model, first, "forgetting the same person again")


def _make_unchanged_check(model: Any, people: People) -> Callable[[str], None]:
    """Return a function that asserts that digest, saved file, outputs and ids are unchanged."""
    digest, file, outputs = model.digest(), save_to_bytes(model), get_outputs(model, people.X)

    def require_unchanged(action: str) -> None:
        assert np.array_equal(get_outputs(model, people.X), outputs), (
            f"{action} changed the outputs"
        )
        assert model.digest() == digest, f"{action} changed the digest"
        assert save_to_bytes(model) == file, f"{action} changed the saved file"
        assert sorted(model.ids_.tolist()) == sorted(people.unique_ids), f"{action} changed ids_"

    return require_unchanged


def check_forget_failure_leaves_model_unchanged(estimator: Any) -> None:
    """Check that the model and its saved file are unchanged after a `forget` that raised."""
    people, model = fit_people(estimator)
    require_unchanged = _make_unchanged_check(model, people)
    refusals: list[tuple[type[Exception], list[Any]]] = [
        (UnknownIdError, [people.unique_ids[0], "unknown"]),
        (EmptyModelError, people.unique_ids),
        (TypeError, [people.unique_ids[0], None]),
        (TypeError, [1.5]),
    ]
    for error, ids in refusals:
        action = f"forgetting {len(ids)} id(s) that cannot be forgotten"
        _require_refusal(error, model, ids, action)
        require_unchanged(f"a refused forget ({error.__name__})")


def check_forget_no_ids_is_a_no_op(estimator: Any) -> None:
    """Check that an empty request changes nothing and returns a receipt."""
    _, model = fit_people(estimator)
    digest = model.digest()
    receipt = model.forget([])
    assert (receipt.n_ids, receipt.n_rows, receipt.work) == (0, 0, 0.0), f"not empty: {receipt}"
    assert model.digest() == digest, "an empty forget changed the model"


def check_forget_removes_all_rows_of_a_person(estimator: Any) -> None:
    """Check that all rows of a person are removed for good, and that repeated ids count once."""
    people, model = fit_people(estimator)
    name = max(people.unique_ids, key=people.ids.tolist().count)
    receipt = model.forget([name, name])
    owned = people.ids.tolist().count(name)
    assert (receipt.n_ids, receipt.n_rows) == (1, owned), f"wrong numbers in {receipt}"
    assert model.n_rows_ == len(people.ids) - owned, "some rows of the person remain"
    assert name not in model.ids_.tolist(), "the person is still in ids_"
    second = next(other for other in people.unique_ids if other != name)
    model.forget([second])
    expected = sorted(set(people.unique_ids) - {name, second})
    assert model.ids_.tolist() == expected, "after a second request, ids_ are not the remaining ids"
    n_rows = len(people.without([name, second]).ids)
    assert model.n_rows_ == n_rows, "after a second request, n_rows_ counts forgotten rows"


def check_receipt_digest_matches_model(estimator: Any) -> None:
    """Check that a receipt has the digests before and after, if ``digest=True`` and only then."""
    people, model = fit_people(estimator)
    before = model.digest()
    receipt = model.forget(people.unique_ids[:2], digest=True)
    assert receipt.digest_before == before, "digest_before is not the digest before forget"
    assert receipt.digest_after == model.digest(), "digest_after is not the digest after forget"
    assert receipt.digest_after != before, "the digest did not change though rows were removed"
    plain = model.forget(people.unique_ids[2:3])
    assert plain.digest_before is None, "digest_before is set without digest=True"
    assert plain.digest_after is None, "digest_after is set without digest=True"
    assert people.unique_ids[0] not in repr(receipt), "the receipt contains an id"


def check_forget_last_of_class(estimator: Any) -> None:
    """Check that a class is removed from `classes_` with its last row, as in a fresh fit."""
    people, model = fit_people(estimator)
    label = people.y[0]
    holders = [name for name in people.unique_ids if label in people.y[people.ids == name]]
    model.forget(holders)
    fresh = refit(model, people.without(holders))
    assert label not in model.classes_.tolist(), f"class {label!r} has no row but is in classes_"
    assert np.array_equal(model.classes_, fresh.classes_), "classes_ differ from a fresh fit"
    outputs, expected = get_outputs(model, people.X), get_outputs(fresh, people.X)
    assert outputs.shape == expected.shape, "the outputs still have a column for the class"


def check_predict_is_pure(estimator: Any) -> None:
    """Check that a prediction changes neither the model nor later predictions."""
    people, model = fit_people(estimator)
    require_unchanged = _make_unchanged_check(model, people)
    get_outputs(model, people.X)
    require_unchanged("predict")


def check_guarantee_is_honest(estimator: Any) -> None:
    """Check that a model claims no more than its method declares, with fixed and secret noise."""
    for heading in ("Claim", "Assumptions", "Removal"):
        assert f"**{heading}" in estimator.facts.definition, f"the definition has no {heading}"
    people = make_people(estimator)
    for train in (fit, fit_with_secret_noise) if has_secret_noise(estimator) else (fit,):
        model = train(estimator, people)
        _require_permitted_claim(model)
        receipt = model.forget(people.unique_ids[:1])
        assert receipt.guarantee == model.guarantee_, "the guarantees of receipt and model differ"
        _require_permitted_claim(model)


def _require_permitted_claim(model: Any) -> None:
    claim, facts = model.guarantee_, model.facts
    assert facts.exact or claim.kind != "exact", "an approximate method claims to be exact"
    assert claim.requests == "oblivious" or facts.requests == "adaptive", (
        "the guarantee covers adaptive requests, but the method does not"
    )
    assert claim.releases in (facts.releases, "latest-only"), (
        f"the guarantee states releases={claim.releases!r}, the method {facts.releases!r}"
    )
    overdrawn = None not in (claim.spent, claim.budget) and claim.spent > claim.budget
    assert not overdrawn, f"spent={claim.spent} exceeds budget={claim.budget}"


def check_changed_parameters_are_noticed(estimator: Any) -> None:
    """Check that `forget` raises after a parameter was changed, until it is restored."""
    people, model = fit_people(estimator)
    for name, value in _choose_parameters(model).items():
        # A nested estimator or other object is replaced by None, and None by a number.
        is_plain = isinstance(value, bool | int | float | str)
        other = change_value(value) if is_plain else (1 if value is None else None)
        model.set_params(**{name: other})
        action = f"forget after fit with {name} changed from {value!r} to {other!r}"
        _require_refusal(ChangedParametersError, model, people.unique_ids[:1], action)
        model.set_params(**{name: value})
    receipt = model.forget(people.unique_ids[:1])
    assert receipt.n_ids == 1, "with all parameters restored, forget did nothing"


def _choose_parameters(model: Any) -> dict[str, Any]:
    """Return one parameter of each plain type: float, int, bool and str.

    If there are none, return one parameter that is None, or any other parameter.

    The result is empty only if the estimator has no parameters that could change a result.
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
    """Check that a concurrent reader sees the model before or after a request, never a mixture.

    One reader predicts as often as possible. Another reader predicts after every executed line of a
    method of the model, and after every replaced attribute.
    """
    people = make_people(estimator)
    for watch in (_ask_repeatedly, _ask_after_every_line):
        model = fit(estimator, people)
        before = get_outputs(model, people.X)
        with watch(partial(get_outputs, model, people.X), model) as seen:
            model.forget(people.unique_ids[:1])
        allowed = [before, get_outputs(model, people.X)]
        failed = [outputs for outputs in seen if isinstance(outputs, Exception)]
        assert not failed, f"a concurrent reader failed {len(failed)} time(s): {failed[0]!r}"
        mixed = [
            outputs
            for outputs in seen
            if not any(np.array_equal(outputs, fine) for fine in allowed)
        ]
        assert not mixed, f"{len(mixed)} of {len(seen)} outputs belong to neither model"


def _call_or_error(ask: Ask) -> Any:
    """Call `ask` and return its result, or the exception that it raised."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001  (the check reports every error)
        return error


@contextmanager
def _ask_repeatedly(ask: Ask, _: Any) -> Iterator[list[Any]]:
    """Predict repeatedly in another thread; yield the list of its outputs."""
    seen: list[Any] = []
    stop = threading.Event()

    def read_repeatedly() -> None:
        while not stop.is_set() and len(seen) < _MOST_READINGS:
            seen.append(_call_or_error(ask))

    reader, interval = threading.Thread(target=read_repeatedly), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader.start()
    try:
        yield seen
    finally:
        stop.set()
        reader.join()
        sys.setswitchinterval(interval)


@contextmanager
def _ask_after_every_line(ask: Ask, model: Any) -> Iterator[list[Any]]:
    """Pause the forgetting thread after every line and predict in another thread.

    Yield the list of the outputs.
    """
    previous = sys.gettrace()
    with ThreadPoolExecutor(1) as pool:
        reader = _StepReader(model, lambda: pool.submit(_call_or_error, ask))
        sys.settrace(reader.on_call)
        try:
            yield reader.seen
        finally:
            sys.settrace(previous)
    reader.collect_answer()


class _StepReader:
    """A tracer that takes predictions between two lines of the forgetting thread."""

    def __init__(self, model: Any, ask: Callable[[], "Future[Any]"]) -> None:
        self.seen: list[Any] = []
        self._model = model
        self._ask = ask
        self._pending: Future[Any] | None = None
        self._readings = {True: 0, False: 0}
        self._parts = self._list_object_ids()

    def on_call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        """Trace methods of the model, and functions that a commit calls."""
        if not (self._is_method(frame) or self._in_commit(frame)):
            return None
        frame.f_trace_opcodes = True  # `self.a, self.b = a, b` is one line and two steps
        return self._on_step

    def collect_answer(self) -> None:
        """Add the prediction that was still waiting when `forget` returned, if there is one."""
        if self._pending is not None:
            self.seen.append(self._pending.result())

    def _on_step(self, frame: FrameType, event: str, _arg: Any) -> Any:
        parts = self._list_object_ids()
        if event != "opcode" or parts != self._parts:
            self._parts = parts
            self._take_reading(self._in_commit(frame))
        return self._on_step

    def _take_reading(self, in_commit: bool) -> None:
        # Counted separately, so that a long preparation leaves enough readings for the commit.
        if self._pending is not None or self._readings[in_commit] >= _MOST_READINGS:
            return
        self._readings[in_commit] += 1
        pending = self._ask()
        try:
            self.seen.append(pending.result(timeout=_PATIENCE_S))
        except StillWaiting:  # the reader may wait for the model's lock
            self._pending = pending

    def _list_object_ids(self) -> list[int]:
        """Return the identities of the objects in the attributes of the model, two levels deep."""
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
