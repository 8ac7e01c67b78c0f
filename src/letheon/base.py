"""The contract of a model that forgets.

A model that can forget is a training algorithm, a removal mechanism and a certificate (survey,
Definition 7). `ForgetMixin` is the removal mechanism's public face: `forget` is a template that a
new family fills with `_prepare` (may fail, changes nothing, trains replacements aside) and
`_commit` (cannot fail).
"""

import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from letheon import state
from letheon.exceptions import ChangedParametersError, EmptyModelError, UnknownIdError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.receipt import Receipt
from letheon.rows import Found, Ids, as_ids

# Parameters that never change what is learned, wherever they are nested.
NEUTRAL_PARAMETERS = frozenset({"n_jobs", "verbose", "rebuild", "checkpoint_dir", "random_state"})

_locks: WeakKeyDictionary[object, threading.RLock] = WeakKeyDictionary()
_locks_guard = threading.Lock()


@contextmanager
def exclusive(model: object) -> Iterator[None]:
    """Hold the model's lock: mutators are exclusive and wait for each other.

    The locks live beside the models, not in them, so that they are never copied, pickled or saved.
    """
    with _locks_guard:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        yield


@dataclass(frozen=True)
class Removal:
    """Rows to remove: how many people and rows, and where the family finds them."""

    n_ids: int
    n_rows: int
    where: Any


@dataclass(frozen=True)
class Outcome:
    """What a commit did: work as a share of naive retraining, and parts that were rebuilt."""

    work: float
    rebuilt: dict[str, int] = field(default_factory=dict)


class ForgetMixin:
    """Mixin for estimators that forget people; the two methods to write are at the end.

    A family sets in `fit`, at the end and only after success: `seed_`, its rows, its model, and
    what `_remember_settings` records. A commit swaps one attribute (or updates ``__dict__`` in one
    call), so a concurrent `predict` sees the model before or after, never a mixture.

    Attributes
    ----------
    facts : MethodFacts
        What the method declares about itself.
    """

    facts: ClassVar[MethodFacts]
    # Attributes that tell how a model came to be or where it lies, not what it is.
    _not_digested: ClassVar[frozenset[str]] = frozenset({"environment_", "parameters_", "tuning_"})

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
        check_is_fitted(self)
        wanted = as_ids(ids).distinct()
        with exclusive(self):
            self._require_same_parameters()
            before = self.digest() if digest else None
            start = time.perf_counter()
            removal, outcome = self._forget(wanted)
            seconds = time.perf_counter() - start
            return Receipt(
                method=self.facts.method,
                n_ids=removal.n_ids,
                n_rows=removal.n_rows,
                guarantee=self.guarantee_,
                seconds=seconds,
                work=outcome.work,
                rebuilt=outcome.rebuilt,
                digest_before=before,
                digest_after=self.digest() if digest else None,
            )

    def _forget(self, wanted: Ids) -> tuple[Removal, Outcome]:
        if len(wanted) == 0:
            return Removal(0, 0, None), Outcome(work=0.0)
        removal = self._locate(wanted)
        if removal.n_rows == self.n_rows_:
            raise EmptyModelError(
                f"these {removal.n_ids} id(s) own all {removal.n_rows} row(s) of the model; "
                "nothing would be left to fit. Delete the model and its files instead."
            )
        return removal, self._commit(self._prepare(removal))

    def digest(self) -> str:
        """Return the SHA-256 of the canonical state, as a hexadecimal string.

        Two exact models with the same digest are the same model: compare it with the digest of a
        fresh `fit` on the remaining rows with ``random_state=model.seed_``. Confidential: whoever
        holds the remaining rows can test guesses of a forgotten row against an old digest.
        """
        check_is_fitted(self)
        with exclusive(self):
            return state.digest(self)

    @property
    def ids_(self) -> NDArray[Any]:
        """Ids of the people still held, each once, in order of first appearance."""
        check_is_fitted(self)
        return self._held_ids().distinct().to_array()

    @property
    def guarantee_(self) -> Guarantee:
        """What is claimed about the model as it is now."""
        check_is_fitted(self)
        claim = self._claim()
        return claim.with_tuning(self.tuning_) if "tuning_" in vars(self) else claim

    @property
    def residual_state_(self) -> tuple[str, ...]:
        """What a forgotten row may still have touched in the saved state; empty if nothing."""
        return self.guarantee_.residual_state

    def declare_tuning(self, how: str) -> Self:
        """Record how hyper-parameters were chosen; it becomes part of the guarantee.

        Tuning on rows that are forgotten later weakens every guarantee, so say it.
        """
        self.tuning_ = how
        return self

    def _remember_settings(self) -> dict[str, Any]:
        """Return the attributes that tie a fitted model to its settings and libraries."""
        return {"environment_": state.environment(), "parameters_": self._parameters()}

    def _parameters(self) -> str:
        """Digest of every parameter that affects the result, nested ones included."""
        chosen = {
            name: _plain(value)
            for name, value in self.get_params(deep=True).items()  # type: ignore[attr-defined]
            if name.rpartition("__")[2] not in NEUTRAL_PARAMETERS
        }
        return state.digest(chosen)

    def _require_same_parameters(self) -> None:
        if self._parameters() != vars(self).get("parameters_"):
            raise ChangedParametersError(
                f"parameters of this {type(self).__name__} were changed after fit; a retrained "
                "part would not match the rest. Set them back, or call fit again."
            )

    def _digest_state(self) -> dict[str, Any]:
        """State without settings that do not affect the result; `seed_` stands for the seed."""
        skipped = NEUTRAL_PARAMETERS | self._not_digested
        return {name: value for name, value in vars(self).items() if name not in skipped}

    def __sklearn_is_fitted__(self) -> bool:
        """Fitted once `fit` has set the seed."""
        return "seed_" in vars(self)

    @property
    @abstractmethod
    def n_rows_(self) -> int:
        """Number of rows still held."""

    @abstractmethod
    def _held_ids(self) -> Ids:
        """Return the ids of all rows held."""

    @abstractmethod
    def _claim(self) -> Guarantee:
        """Return what the method claims about the model as it is now."""

    @abstractmethod
    def _locate(self, wanted: Ids) -> Removal:
        """Find the rows of these people; raise `UnknownIdError` for people not held."""

    @abstractmethod
    def _prepare(self, removal: Removal) -> Any:
        """Train replacements aside. May fail; changes nothing."""

    @abstractmethod
    def _commit(self, plan: Any) -> Outcome:
        """Put the replacements in place and destroy what saw the rows. Cannot fail."""


def require_known(missing: Ids) -> None:
    """Raise `UnknownIdError` that shows up to five of the missing ids."""
    if len(missing) == 0:
        return
    shown = missing.take(np.arange(min(5, len(missing)))).to_list()
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    raise UnknownIdError(
        f"ids not in this model: {shown}{more}; nothing was forgotten, see model.ids_"
    )


def removal_of(found: Found, n_ids: int) -> Removal:
    """Return the removal of rows found in one block of rows, or raise `UnknownIdError`."""
    require_known(found.missing)
    return Removal(n_ids, len(found.positions), found.positions)


def _plain(value: Any) -> Any:
    """Stand-in of a nested estimator: its class; its own parameters are listed beside it."""
    if hasattr(value, "get_params"):
        return f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
