"""The contract of a model that forgets.

A model that can forget is a training algorithm, a removal mechanism and a certificate (survey,
Definition 7). `ForgetMixin` is the removal mechanism's public face: `forget` is a template that a
new family fills with `_prepare` (may fail, changes nothing, trains replacements aside) and
`_commit` (cannot fail).
"""

import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter, is_
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from letheon import state
from letheon.data import Ids, Rows, SlotRows, as_ids
from letheon.exceptions import (
    ChangedParametersError,
    EmptyModelError,
    IdsTypeError,
    UnknownIdError,
    warn_caller,
)
from letheon.guarantee import Guarantee, MethodFacts
from letheon.methods import find_method
from letheon.receipt import Receipt

# Parameters that never change what is learned, wherever they are nested.
NEUTRAL_PARAMETERS = state.NEUTRAL_PARAMETERS | {"random_state"}

# Values of these types cannot change behind a model's back.
_CONSTANTS = frozenset({type(None), bool, int, float, str})
_NEVER = object()


class _Beside:
    """What is kept beside a model and not in it, so that it is never copied, pickled or saved."""

    __slots__ = ("is_changing", "lock", "read", "recorded", "values")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_changing = False
        # Parameters as they were when they were last hashed and found to be those of the fit: while
        # they are the very same objects there is no need to hash them again.
        self.recorded: Any = _NEVER
        self.read: Callable[[Any], tuple[Any, ...]] = tuple
        self.values: tuple[Any, ...] = ()


_besides: WeakKeyDictionary[object, _Beside] = WeakKeyDictionary()
_besides_guard = threading.Lock()


def _beside(model: object) -> _Beside:
    found = _besides.get(model)
    if found is None:
        with _besides_guard:
            found = _besides.setdefault(model, _Beside())
    return found


def lock_model(model: object) -> AbstractContextManager[Any]:
    """Return the model's lock, to be held: mutators are exclusive and wait for each other."""
    return _beside(model).lock


@contextmanager
def lock_for_change(model: object) -> Iterator[None]:
    """Hold the model's lock for a change; one that starts inside another one is refused.

    The lock lets its own thread in again, so that a callback may predict. A second change there
    would be undone when the first one puts what it prepared in place.

    Raises
    ------
    RuntimeError
        A change of this model is under way in this very thread.
    """
    beside = _beside(model)
    with beside.lock:
        if beside.is_changing:
            raise RuntimeError(
                f"a fit, forget or learn of this {type(model).__name__} was called from inside "
                "another one, in a callback perhaps; nothing was changed. Call it afterwards."
            )
        beside.is_changing = True
        try:
            yield
        finally:
            beside.is_changing = False


def require_fitted(model: "ForgetMixin") -> None:
    """Raise `NotFittedError` unless the model is fitted; quick when it is."""
    if not model.__sklearn_is_fitted__():
        check_is_fitted(model)


class Removal(NamedTuple):
    """Rows to remove: how many people and rows, and where the family finds them."""

    n_ids: int
    n_rows: int
    where: Any


class Outcome(NamedTuple):
    """What a commit did: work as a share of retraining, parts rebuilt, warnings, estimates."""

    work: float
    rebuilt: Mapping[str, int] = MappingProxyType({})
    warnings: tuple[Warning, ...] = ()
    estimates: Mapping[str, float] = MappingProxyType({})


class ForgetMixin:
    """Mixin for estimators that forget people; what a family must write stands at the end.

    A family sets in `fit`, at the end and only after success: `seed_`, its rows, its model, and
    what `_remember_settings` records. A commit swaps one attribute (or updates ``__dict__`` in one
    call), so a concurrent `predict` sees the model before or after, never a mixture.

    Attributes
    ----------
    facts : MethodFacts
        What the method declares about itself.
    """

    facts: ClassVar[MethodFacts]
    # Parameters of this class, besides those of all, that never change what is learned.
    _neutral_parameters: ClassVar[frozenset[str]] = frozenset()
    # Attributes that tell how a model came to be or where it lies, not what it is.
    _not_digested: ClassVar[frozenset[str]] = frozenset(
        {"environment_", "parameters_", "config_", "tuning_"}
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a certified method of this package that the registry does not know."""
        super().__init_subclass__(**kwargs)
        require_registered(cls)

    def forget(self, ids: Any, *, digest: bool = False) -> Receipt:
        """Remove every row of these people, as if they had never been there.

        Parameters
        ----------
        ids : sequence of int or of str
            People to forget. Repeated ids count once; an empty list is a no-op with a receipt.
        digest : bool, default=False
            Also record the digests before and after (each hashes the whole model).

        Returns
        -------
        Receipt
            What was done: numbers, never the ids.

        Raises
        ------
        UnknownIdError
            Some ids are not held. Nothing was forgotten.
        EmptyModelError
            `fit` on the remaining rows would raise. Nothing was forgotten.
        """
        return self._answer_request(ids, digest, self._prepare)

    def _answer_request(self, ids: Any, digest: bool, prepare: Callable[[Removal], Any]) -> Receipt:
        """Template of `forget`; a family whose `forget` takes more gives its own `prepare`."""
        require_fitted(self)
        wanted = as_ids(ids).distinct()
        with lock_for_change(self):
            self._require_same_parameters()
            before = self.digest() if digest else None
            start = time.perf_counter()
            removal, outcome = self._forget(wanted, prepare)
            seconds = time.perf_counter() - start
            receipt = Receipt(
                method=self.facts.method,
                n_ids=removal.n_ids,
                n_rows=removal.n_rows,
                guarantee=self.guarantee_,
                seconds=seconds,
                work=outcome.work,
                rebuilt=dict(outcome.rebuilt),
                estimates={name: float(value) for name, value in outcome.estimates.items()},
                digest_before=before,
                digest_after=self.digest() if digest else None,
            )
        warn_all(outcome.warnings)
        return receipt

    def _forget(self, wanted: Ids, prepare: Callable[[Removal], Any]) -> tuple[Removal, Outcome]:
        if len(wanted) == 0:
            return Removal(0, 0, None), Outcome(work=0.0)
        removal = self._locate_rows(wanted)
        if removal.n_rows == self.n_rows_:
            kept = ", its files and its checkpoint directory"
            kept = kept if _has_directory(self) else " and its files"
            raise EmptyModelError(
                f"these {removal.n_ids} id(s) own all {removal.n_rows} row(s) of the model; "
                f"nothing would be left to fit. Delete the model{kept} instead."
            )
        return removal, self._commit(prepare(removal))

    def digest(self) -> str:
        """Return the SHA-256 of the canonical state, as a hexadecimal string.

        Two exact models with the same digest are the same model: compare it with the digest of a
        fresh `fit` on the remaining rows with ``random_state=model.seed_``. Confidential: whoever
        holds the remaining rows can test guesses of a forgotten row against an old digest.
        """
        require_fitted(self)
        with lock_model(self):
            return state.digest(self)

    @property
    def ids_(self) -> NDArray[Any]:
        """Ids of the people still held, each once, sorted."""
        require_fitted(self)
        return np.sort(self._get_ids().distinct().to_array())

    @property
    def guarantee_(self) -> Guarantee:
        """What is claimed about the model as it is now."""
        require_fitted(self)
        claim = self._make_guarantee()
        return claim.with_tuning(self.tuning_) if "tuning_" in vars(self) else claim

    @property
    def residual_state_(self) -> tuple[str, ...]:
        """What a forgotten row may still have touched in the saved state; empty if nothing."""
        return self.guarantee_.residual_state

    def declare_tuning(self, how: str) -> Self:
        """Record how hyper-parameters were chosen; it becomes part of the guarantee.

        Tuning on rows that are forgotten later weakens every guarantee, so say it. A new `fit`
        drops the note.
        """
        if not how:
            raise ValueError("say how hyper-parameters were chosen; got an empty text")
        self.tuning_ = how
        return self

    def _remember_settings(self) -> dict[str, Any]:
        """Return the attributes that tie a fitted model to its settings and libraries."""
        return {"environment_": self._describe_environment(), "parameters_": self._parameters()}

    def _describe_environment(self) -> dict[str, str]:
        """Return what affects results besides data, settings and seed; a family may add to it."""
        return state.environment()

    def _parameters(self) -> str:
        """Digest of every parameter that affects the result, nested ones included."""
        return state.digest(_plain(self))

    def _require_same_parameters(self) -> None:
        recorded, known = vars(self).get("parameters_"), _beside(self)
        if known.recorded is recorded and all(map(is_, known.read(self), known.values)):
            return
        if self._parameters() != recorded:
            raise ChangedParametersError(
                f"parameters of this {type(self).__name__} were changed after fit; a retrained "
                "part would not match the rest. Set them back, or call fit again."
            )
        _note_verified(self, recorded)

    def _digest_state(self) -> dict[str, Any]:
        """State without settings that do not affect the result; `seed_` stands for the seed."""
        skipped = neutral_parameters(self) | self._not_digested
        return {name: value for name, value in vars(self).items() if name not in skipped}

    def __sklearn_is_fitted__(self) -> bool:
        """Fitted once `fit` has set the seed."""
        return "seed_" in vars(self)

    def _learn(self, ids: Any, prepare: Callable[[], Any]) -> Self:
        """Template of `learn`: as `forget`, a plan is prepared aside and then committed."""
        require_fitted(self)
        if ids is None:
            raise IdsTypeError("learn got ids=None; say whose rows they are, one id per row")
        with lock_for_change(self):
            self._require_same_parameters()
            outcome = self._commit(prepare())
        warn_all(outcome.warnings)
        return self

    def _destroy_files(self) -> list[str]:
        """Destroy what the model keeps outside its object; return warnings."""
        return []

    def _finish_pending(self) -> None:
        """Do now what requests left for later, if anything; changes no answer and no digest.

        Whoever times a request calls it before the clock stops. A lazy method that does not do
        its work here looks faster than it is.
        """

    @property
    def n_rows_(self) -> int:
        """Number of rows still held."""
        raise NotImplementedError(f"{type(self).__name__} must say how many rows it holds")

    def _get_ids(self) -> Ids:
        """Return the ids of all rows held."""
        raise NotImplementedError(f"{type(self).__name__} must return the ids it holds")

    def _make_guarantee(self) -> Guarantee:
        """Return what the method claims about the model as it is now."""
        raise NotImplementedError(f"{type(self).__name__} must state its guarantee")

    def _locate_rows(self, wanted: Ids) -> Removal:
        """Find the rows of these people; raise `UnknownIdError` for people not held."""
        raise NotImplementedError(f"{type(self).__name__} must find the rows of people")

    def _prepare(self, removal: Removal) -> Any:
        """Train replacements aside. May fail; changes nothing."""
        raise NotImplementedError(f"{type(self).__name__} must prepare a removal")

    def _commit(self, plan: Any) -> Outcome:
        """Put the replacements in place and destroy what saw the rows. Cannot fail."""
        raise NotImplementedError(f"{type(self).__name__} must commit a removal")


class KeywordScoreMixin:
    """Mixin, before scikit-learn's, whose `score` cannot take ids for weights by position."""

    def score(self, X: Any, y: Any, *, sample_weight: Any = None) -> float:
        """Return the mean accuracy of a classifier, or R squared of a regressor."""
        value: float = super().score(X, y, sample_weight=sample_weight)  # type: ignore[misc]
        return value


class InPlaceMixin:
    """Mixin, before `ForgetMixin`, for models whose requests write into memory that they hold."""

    def __copy__(self) -> Self:
        """Return a copy with memory of its own for what changes in place."""
        twin = type(self).__new__(type(self))
        with lock_model(self):
            vars(twin).update(vars(self))
            for name in self._in_place_attributes():
                if name in vars(self):
                    vars(twin)[name] = copy.copy(vars(self)[name])
        return twin

    def _in_place_attributes(self) -> tuple[str, ...]:
        """Names of attributes whose memory a request writes into."""
        raise NotImplementedError(f"{type(self).__name__} must name what changes in place")


def _has_directory(model: ForgetMixin) -> bool:
    """Whether the model, or a part of it, keeps states in a directory of its own."""
    params = model.get_params().items() if hasattr(model, "get_params") else ()
    return any(
        name.rpartition("__")[2] == "checkpoint_dir" and value is not None for name, value in params
    )


def require_known(missing: Ids, held: Ids, *, done: str = "nothing was forgotten, ") -> None:
    """Raise `UnknownIdError` that shows up to five of the missing ids."""
    if len(missing) == 0:
        return
    hint = ""
    if missing.kind != held.kind:
        hint = f"; this model holds {held.kind} ids and was given {missing.kind}, and 1 is not '1'"
    shown = missing.take(np.arange(min(5, len(missing)))).to_list()
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    raise UnknownIdError(f"ids not in this model: {shown}{more}; {done}see model.ids_{hint}")


def locate_in(rows: Rows | SlotRows, wanted: Ids) -> Removal:
    """Return the removal of these people from one block of rows, or raise `UnknownIdError`."""
    matches = rows.find(wanted)
    if len(matches.missing):
        require_known(matches.missing, rows.ids)
    return Removal(len(wanted), len(matches.positions), matches.positions)


def _note_verified(model: ForgetMixin, recorded: Any) -> None:
    """Remember parameters that matched, if all of them are constants."""
    if type(model)._parameters is not ForgetMixin._parameters or not hasattr(model, "get_params"):
        return
    params = model.get_params(deep=False)
    names = [name for name in params if name not in neutral_parameters(model)]
    values = tuple(params[name] for name in names)
    # Of one name `attrgetter` returns no tuple; such a model is hashed every time.
    if len(names) > 1 and all(type(value) in _CONSTANTS for value in values):
        known = _beside(model)
        known.read, known.values, known.recorded = attrgetter(*names), values, recorded


def require_registered(cls: type) -> None:
    """Refuse a class of this package that declares a method in another way than the registry.

    Raises
    ------
    TypeError
        It is not registered, or with another kind of certificate.
    """
    facts = vars(cls).get("facts")
    is_ours = cls.__module__.partition(".")[0] == "letheon"
    # Controls of attacks have facts, too, but no definition text of letheon's.
    if not (is_ours and isinstance(facts, MethodFacts) and facts.definition_name):
        return
    method = find_method(facts.method)
    if method is None or method.certificate != facts.certificate:
        registered = "not registered" if method is None else f"registered as {method.certificate}"
        raise TypeError(
            f"{cls.__name__} declares the {facts.certificate} method {facts.method!r}, which is "
            f"{registered} in letheon.methods; add or correct its line there"
        )


def neutral_parameters(model: Any) -> frozenset[str]:
    """Return the parameters of an estimator that never change what it learns."""
    return NEUTRAL_PARAMETERS | getattr(type(model), "_neutral_parameters", frozenset())


def _plain(value: Any) -> Any:
    """Return a value with estimators in it, at any depth, as their classes and parameters."""
    if hasattr(value, "get_params") and not isinstance(value, type):
        params, neutral = value.get_params(deep=False).items(), neutral_parameters(value)
        kept = {name: _plain(part) for name, part in params if name not in neutral}
        return [state.tag_of(type(value)), kept]
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    # Whoever searches a range of NumPy means the numbers themselves.
    return value.item() if isinstance(value, np.number | np.bool | np.str_) else value


def warn_all(found: tuple[Warning, ...]) -> None:
    """Warn when all is done: a warning that is an error must not leave a half-done request."""
    for warning in found:
        warn_caller(str(warning), type(warning))
