"""The contract of a model that forgets.

A model that can forget is a training algorithm, a removal mechanism and a certificate (survey,
Definition 7). `ForgetMixin` is the public interface of the removal mechanism. Its `forget` calls
two methods of the estimator: `_prepare` trains replacements and may fail, but changes nothing;
then `_commit` installs them and cannot fail.

Parameters
----------
model, cls : estimator, type
    A model that forgets, fitted or not; its class.
rows, ids, missing, remaining : Rows or SlotRows, Ids
    Rows of a model; ids to remove; those that are not in the model; those that stay.
samples : ndarray of bool or None
    For each id, whether it is in the sample; None if there is no such sample.
warnings : tuple of Warning
    What to issue.
"""

import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

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
from letheon.model_locks import (
    NEUTRAL_PARAMETERS,
    NEVER,
    get_runtime_state,
    lock_for_change,
    lock_model,
    note_verified,
)
from letheon.predictor import Predictor, PredictorSource
from letheon.receipt import Receipt

__all__ = [
    "NEUTRAL_PARAMETERS",
    "ForgetMixin",
    "InPlaceMixin",
    "KeywordScoreMixin",
    "Outcome",
    "Removal",
    "decisive_parameters",
    "join_samples",
    "locate_in",
    "lock_for_change",
    "lock_model",
    "neutral_parameters",
    "require_fitted",
    "require_known",
    "require_registered",
    "warn_all",
]

_logger = logging.getLogger(__name__)


def require_fitted(model: "ForgetMixin") -> None:
    """Raise `NotFittedError` if the model is not fitted.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> require_fitted(NearestCentroid().fit([[0.0], [1.0]], ["a", "b"]))
    """
    if not model.__sklearn_is_fitted__():
        check_is_fitted(model)


class Removal(NamedTuple):
    """Rows to remove.

    Parameters
    ----------
    n_ids, n_rows, where : int, int, object
        Number of ids, number of their rows, and where they are (depends on the method).

    Examples
    --------
    >>> Removal(n_ids=1, n_rows=2, where=[0, 2]).n_rows
    2
    """

    n_ids: int
    n_rows: int
    where: Any


class Outcome(NamedTuple):
    """Result of a commit.

    Parameters
    ----------
    work : float
        Share of the cost of naive retraining.
    rebuilt : mapping of str to int
        Number of rebuilt parts by kind.
    warnings : tuple of Warning
        Warnings to issue after the commit.
    estimates : mapping of str to float
        Estimates for the receipt.

    Examples
    --------
    >>> Outcome(work=0.25, rebuilt={"shards": 1}).rebuilt["shards"]
    1
    """

    work: float
    rebuilt: Mapping[str, int] = MappingProxyType({})
    warnings: tuple[Warning, ...] = ()
    estimates: Mapping[str, float] = MappingProxyType({})


class ForgetMixin(PredictorSource):
    """Mixin for estimators that forget. A new estimator must implement the last six methods.

    At the end of a successful training, `fit` sets `seed_`, the rows, the model, and the attributes
    that `_remember_settings` returns. A commit replaces one attribute (or updates ``__dict__`` in
    one call), so a concurrent `predict` uses the model before or after the change, never a mixture.

    Attributes
    ----------
    facts : MethodFacts
        Facts about the method.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> model = NearestCentroid().fit([[0.0], [1.0], [9.0]], ["a", "a", "b"], ids=[7, 8, 9])
    >>> isinstance(model, ForgetMixin), model.forget([8]).n_rows, model.ids_
    (True, 1, array([7, 9]))
    """

    facts: ClassVar[MethodFacts]
    # Parameters of this class, in addition to `NEUTRAL_PARAMETERS`, that do not affect the result.
    _neutral_parameters: ClassVar[frozenset[str]] = frozenset()
    # Parameters that older models do not have, with their defaults; a default is not recorded.
    _later_parameters: ClassVar[dict[str, Any]] = {}
    # Attributes about the origin or location of a model, which are not part of its digest.
    _not_digested: ClassVar[frozenset[str]] = frozenset(
        {"environment_", "parameters_", "config_", "tuning_", "_metadata_request"}
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise `TypeError` if a method of this package is not registered correctly."""
        super().__init_subclass__(**kwargs)
        require_registered(cls)

    def forget(self, ids: Any, *, digest: bool = False) -> Receipt:
        """Remove every row of these ids from the model.

        Parameters
        ----------
        ids : sequence of int or of str
            Ids to forget. Duplicates count once; an empty list changes nothing and gives a receipt.
        digest : bool, default=False
            Also record the digests before and after the removal; each hashes the whole model.

        Returns
        -------
        Receipt
            What was done, in numbers. It does not contain the ids.

        Raises
        ------
        UnknownIdError
            Some ids are not in the model. Nothing was forgotten.
        EmptyModelError
            `fit` on the remaining rows would raise. Nothing was forgotten.
        """
        return self._answer_request(ids, digest, self._prepare)

    def _answer_request(self, ids: Any, digest: bool, prepare: Callable[[Removal], Any]) -> Receipt:
        """Remove the rows of `ids` and return the receipt; see `forget`.

        A method whose `forget` has more arguments passes its own `prepare`.
        """
        require_fitted(self)
        requested = as_ids(ids).distinct()
        with lock_for_change(self):
            self._require_same_parameters()
            before = self.digest() if digest else None
            start = time.perf_counter()
            removal, outcome = self._run_removal(requested, prepare)
            seconds = time.perf_counter() - start
            receipt = Receipt(
                method=type(self).facts.method,
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
        _logger.info("%s: %s", type(self).__name__, receipt)
        warn_all(outcome.warnings)
        return receipt

    def _run_removal(self, ids: Ids, prepare: Callable[[Removal], Any]) -> tuple[Removal, Outcome]:
        if len(ids) == 0:
            return Removal(0, 0, None), Outcome(work=0.0)
        removal = self._locate_rows(ids)
        if removal.n_rows == self.n_rows_:
            files = ", its files and its checkpoint directory"
            files = files if _has_directory(self) else " and its files"
            raise EmptyModelError(
                f"these {removal.n_ids} id(s) own all {removal.n_rows} row(s) of the model; no "
                f"rows would remain to fit. Delete the model{files} instead."
            )
        return removal, self._commit(prepare(removal))

    def digest(self) -> str:
        """Return the SHA-256 of the canonical state, as a hexadecimal string.

        Two exact models with the same digest are the same model: compare it with the digest of a
        fresh `fit` on the remaining rows with ``random_state=model.seed_``. Keep it confidential:
        with the remaining rows and an old digest, an attacker can test guesses of a forgotten row.
        """
        require_fitted(self)
        with lock_model(self):
            return state.digest(self)

    def predictor(self) -> Predictor:
        """Return a read-only predictor without rows, ids, keys and seed, or raise `TypeError`."""
        require_fitted(self)
        with lock_model(self):
            return self._make_predictor(self._public_claim(self.guarantee_))

    @property
    def ids_(self) -> NDArray[Any]:
        """Remaining ids, each once, sorted."""
        require_fitted(self)
        return np.sort(self._get_ids().distinct().to_array())

    @property
    def guarantee_(self) -> Guarantee:
        """Guarantee of the model in its current state."""
        require_fitted(self)
        claim = self._make_guarantee()
        return claim.with_tuning(self.tuning_) if "tuning_" in vars(self) else claim

    @property
    def residual_state_(self) -> tuple[str, ...]:
        """Parts of the saved state that may still depend on forgotten rows; empty if none do."""
        return self.guarantee_.residual_state

    def declare_tuning(self, how: str) -> Self:
        """Record how hyper-parameters were chosen; the text becomes part of the guarantee.

        Tuning on rows that are forgotten later weakens every guarantee. A new `fit` deletes the
        text.

        Parameters
        ----------
        how : str
            How the hyper-parameters were chosen, and on which data.

        Returns
        -------
        self
        """
        if not how:
            raise ValueError(
                "how is empty; expected a text that says how hyper-parameters were chosen"
            )
        self.tuning_ = how
        return self

    def _remember_settings(self) -> dict[str, Any]:
        """Return attributes that record the settings and libraries of a fitted model."""
        return {
            "environment_": self._describe_environment(),
            "parameters_": self._digest_parameters(),
        }

    def _describe_environment(self) -> dict[str, str]:
        """Return versions and builds that affect results; a subclass may add entries."""
        return state.environment()

    def _digest_parameters(self) -> str:
        """Return the digest of all parameters that affect the result, including nested ones."""
        return state.digest(_parameters_as_data(self))

    def _require_same_parameters(self) -> None:
        recorded, runtime = vars(self).get("parameters_"), get_runtime_state(self)
        reads = runtime.reads
        if reads is not None and runtime.recorded is recorded and reads.are_same(self):
            return
        runtime.reads, runtime.recorded = None, NEVER
        if self._digest_parameters() != recorded:
            raise ChangedParametersError(
                f"parameters of this {type(self).__name__} were changed after fit; a retrained "
                "part would not match the rest. Restore their old values, or call fit again."
            )
        if type(self)._digest_parameters is ForgetMixin._digest_parameters:
            note_verified(self, recorded)

    def _digest_state(self) -> dict[str, Any]:
        """Return the state that the digest covers.

        Settings that do not affect the result are omitted.
        """
        skipped = neutral_parameters(self) | self._not_digested
        return {name: value for name, value in vars(self).items() if name not in skipped}

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:  # noqa: ARG002
        """Return what notebooks show of a fitted model; by default they show ids and seeds."""
        from letheon.terminal import FactTable

        is_step = not self.__sklearn_is_fitted__()  # scikit-learn asks the steps of a pipeline too
        facts = {} if is_step else {"Rows": f"{self.n_rows_:,}", "Guarantee": str(self.guarantee_)}
        return FactTable("Fitted model", facts)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether the model is fitted, that is, whether it has `seed_`."""
        return "seed_" in vars(self)

    def _learn_rows(self, ids: Any, prepare: Callable[[], Any]) -> Self:
        """Add rows for `learn`: call `prepare`, then commit the plan that it returns."""
        require_fitted(self)
        if ids is None:
            raise IdsTypeError("learn got ids=None; expected one id per row")
        with lock_for_change(self):
            self._require_same_parameters()
            outcome = self._commit(prepare())
        _logger.info("%s: learned; %d rows now", type(self).__name__, self.n_rows_)
        warn_all(outcome.warnings)
        return self

    def _destroy_files(self) -> list[str]:
        """Destroy the files of the model; return a warning for each file that remains."""
        return []

    def _finish_pending(self) -> None:
        """Do the work that earlier requests postponed; predictions and digest do not change.

        Code that measures the time of a request calls this before it stops the clock. Otherwise a
        lazy method would look faster than it is.
        """

    def _find_sampled(self, ids: Ids) -> NDArray[np.bool_] | None:
        """Return for each id whether it is in a keyed sample; None if the model has no sample.

        To forget such an id, the part that was fitted on the sample is fitted again. By default the
        samples of all steps or transformers count.
        """
        steps: Any = getattr(self, "steps_", None) or getattr(self, "transformers_", ())
        parts = [step._find_sampled(ids) for _, step, *_ in steps if isinstance(step, ForgetMixin)]
        return join_samples(*parts)

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        raise NotImplementedError(f"{type(self).__name__} must implement n_rows_")

    def _get_ids(self) -> Ids:
        """Return the id of every remaining row."""
        raise NotImplementedError(f"{type(self).__name__} must implement _get_ids")

    def _make_guarantee(self) -> Guarantee:
        """Return the guarantee of the model in its current state."""
        raise NotImplementedError(f"{type(self).__name__} must implement _make_guarantee")

    def _locate_rows(self, ids: Ids) -> Removal:
        """Find the rows of these ids; raise `UnknownIdError` for ids that are not in the model."""
        raise NotImplementedError(f"{type(self).__name__} must implement _locate_rows")

    def _prepare(self, removal: Removal) -> Any:
        """Train replacements without changing the model. May fail."""
        raise NotImplementedError(f"{type(self).__name__} must implement _prepare")

    def _commit(self, plan: Any) -> Outcome:
        """Install the replacements and destroy states that depend on removed rows. Cannot fail."""
        raise NotImplementedError(f"{type(self).__name__} must implement _commit")


def join_samples(*samples: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return for each id whether it is in one of the samples; None if there is no sample.

    Examples
    --------
    >>> import numpy as np
    >>> join_samples(np.array([True, False, False]), None, np.array([False, False, True]))
    array([ True, False,  True])
    """
    masks = [sample for sample in samples if sample is not None]
    return np.logical_or.reduce(masks) if masks else None


class KeywordScoreMixin:
    """Mixin whose `score` has `sample_weight` as a keyword-only argument.

    List it before scikit-learn's mixin.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon import NearestCentroid
    >>> NearestCentroid().fit([[0.0], [1.0]], [0, 1]).score([[0.0], [1.0]], [0, 1])
    1.0
    """

    def score(self, X: Any, y: Any, *, sample_weight: Any = None) -> float:
        """Return the mean accuracy of a classifier, or R squared of a regressor."""
        value: float = super().score(X, y, sample_weight=sample_weight)  # type: ignore[misc]
        return value


class InPlaceMixin:
    """Mixin for models that a request changes in place; list it before `ForgetMixin`.

    Copies of such a model get their own memory for the attributes that change.

    Examples
    --------
    >>> import letheon
    >>> issubclass(letheon.DaREForestClassifier, InPlaceMixin)
    True
    """

    def __copy__(self) -> Self:
        """Return a copy with its own memory for attributes that change in place."""
        duplicate = type(self).__new__(type(self))
        with lock_model(self):
            vars(duplicate).update(vars(self))
            for name in self._in_place_attributes():
                if name in vars(self):
                    vars(duplicate)[name] = copy.copy(vars(self)[name])
        return duplicate

    def _in_place_attributes(self) -> tuple[str, ...]:
        """Return the names of attributes whose memory a request overwrites."""
        raise NotImplementedError(f"{type(self).__name__} must implement _in_place_attributes")


def _has_directory(model: ForgetMixin) -> bool:
    """Return whether the model, or a part of it, has a checkpoint directory."""
    params = model.get_params().items() if hasattr(model, "get_params") else ()
    return any(
        name.rpartition("__")[2] == "checkpoint_dir" and value is not None for name, value in params
    )


def require_known(missing: Ids, remaining: Ids, *, done: str = "nothing was forgotten, ") -> None:
    """Raise `UnknownIdError` if any ids are missing; the message shows up to five of them.

    Parameters
    ----------
    done : str
        What was not done, for the message.

    Raises
    ------
    UnknownIdError
        There is a missing id.

    Examples
    --------
    >>> from letheon.data import as_ids
    >>> require_known(as_ids(["carl"]), as_ids(["anna", "ben"]))
    Traceback (most recent call last):
    ...
    letheon.exceptions.UnknownIdError: ...
    """
    if len(missing) == 0:
        return
    hint = ""
    if missing.kind != remaining.kind:
        kinds = f"{remaining.kind} ids, but the request has {missing.kind} ids"
        hint = f"; this model has {kinds} (1 is not '1')"
    shown = missing.take(np.arange(min(5, len(missing)))).to_list()
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    raise UnknownIdError(f"ids not in this model: {shown}{more}; {done}see model.ids_{hint}")


def locate_in(rows: Rows | SlotRows, ids: Ids) -> Removal:
    """Return the removal of these ids from one block of rows, or raise `UnknownIdError`.

    Raises
    ------
    UnknownIdError
        An id has no rows.

    Examples
    --------
    >>> from letheon.data import Rows, as_ids, hold_table
    >>> rows = Rows(hold_table([[0.0], [1.0], [2.0]]), None, as_ids(["anna", "ben", "anna"]))
    >>> locate_in(rows, as_ids(["anna"]))
    Removal(n_ids=1, n_rows=2, where=array([0, 2]))
    """
    matches = rows.find(ids)
    if len(matches.missing):
        require_known(matches.missing, rows.ids)
    return Removal(len(ids), len(matches.positions), matches.positions)


def require_registered(cls: type) -> None:
    """Raise `TypeError` if the facts of a class of this package differ from the registry.

    Raises
    ------
    TypeError
        The method is not registered, or registered with another kind of guarantee.

    Examples
    --------
    >>> from letheon import SISAClassifier
    >>> require_registered(SISAClassifier)
    """
    facts = vars(cls).get("facts")
    is_ours = cls.__module__.partition(".")[0] == "letheon"
    # Negative controls of attacks also have facts, but no definition text.
    if not (is_ours and isinstance(facts, MethodFacts) and facts.definition_name):
        return
    method = find_method(facts.method)
    if method is None or method.certificate != facts.certificate:
        registered = "not registered" if method is None else f"registered as {method.certificate}"
        raise TypeError(
            f"{cls.__name__} declares the {facts.certificate} method {facts.method!r}, which is "
            f"{registered} in letheon.methods; add or correct its entry there"
        )


def neutral_parameters(model: Any) -> frozenset[str]:
    """Return the parameters of an estimator that do not affect the result.

    Examples
    --------
    >>> from letheon import DaREForestClassifier
    >>> "n_jobs" in neutral_parameters(DaREForestClassifier())
    True
    """
    return NEUTRAL_PARAMETERS | getattr(type(model), "_neutral_parameters", frozenset())


def decisive_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of an estimator that affect the result.

    Parameters that a class received after its first files and certificates are omitted while they
    have their defaults, so that those files and certificates stay valid.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> dict(decisive_parameters(NearestCentroid()))
    {}
    """
    neutral, later = neutral_parameters(model), getattr(type(model), "_later_parameters", {})
    for name, value in model.get_params(deep=False).items():
        if name not in neutral and not (name in later and _is_default(value, later[name])):
            yield name, value


def _parameters_as_data(value: Any) -> Any:
    """Return a value with all estimators in it replaced by their classes and parameters."""
    if hasattr(value, "get_params") and not isinstance(value, type):
        kept = {name: _parameters_as_data(part) for name, part in decisive_parameters(value)}
        return [state.tag_of(type(value)), kept]
    if isinstance(value, list | tuple):
        return [_parameters_as_data(part) for part in value]
    if isinstance(value, dict):
        return {key: _parameters_as_data(part) for key, part in value.items()}
    # Parameter searches set NumPy scalars; they count as the equal Python values.
    return value.item() if isinstance(value, np.number | np.bool | np.str_) else value


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def warn_all(warnings: tuple[Warning, ...]) -> None:
    """Issue warnings, after a change is complete: a filter may turn a warning into an error.

    Examples
    --------
    >>> warn_all(())
    """
    for warning in warnings:
        warn_caller(str(warning), type(warning))
