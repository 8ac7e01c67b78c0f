"""All errors and warnings of letheon.

::

    LetheonError
    ├── IdsTypeError          (TypeError)    ids of a wrong kind, or of mixed kinds
    ├── IdsLengthError        (ValueError)   the number of ids is not the number of rows
    ├── InvalidParameterError (ValueError, TypeError)  a parameter of a wrong type or value
    ├── AssumptionError       (ValueError)   an assumption of a guarantee does not hold
    ├── TrainingError         (ValueError)   a network diverged, or cannot be trained
    ├── NoCandidateError      (ValueError)   no method is within the tolerances
    ├── DatasetMissingError   (FileNotFoundError)  files of a data set are missing
    ├── DatasetFormatError    (ValueError)   a file differs from the published file
    ├── ForgetError
    │   ├── UnknownIdError    (LookupError)  an id is not in the model
    │   ├── EmptyModelError   (ValueError)   `fit` would reject the remaining rows
    │   ├── CannotForgetError (TypeError)    the object cannot forget
    │   ├── BudgetSpentError  (ValueError)   the budget allows no further removal
    │   └── ChangedParametersError (ValueError)  parameters were changed after fit
    ├── StateError
    │   ├── UnsupportedStateError (TypeError)   a value has no canonical bytes
    │   ├── CorruptFileError      (ValueError)  a file is truncated or altered
    │   │   └── MemoryLimitError               reading the file would take too much memory
    │   ├── NewerFormatError      (ValueError)  a file written by a later version of letheon
    │   ├── UntrustedClassError   (ValueError)  a file contains a class or setting not allowed
    │   └── CheckpointError       (OSError)     a checkpoint cannot be written
    └── LedgerError
        ├── LedgerMissingError  (FileNotFoundError)  no ledger in that folder
        ├── NewerLedgerError    (ValueError)    a ledger written by a later version of letheon
        ├── OldDatabaseError    (RuntimeError)  the files are newer than the database
        ├── LedgerBusyError     (RuntimeError)  another process works on the same object
        ├── LedgerUnwritableError (OSError)     the disk is full or read-only; reading works
        ├── UnknownModelError   (LookupError)   no model with that name
        ├── UnknownRequestError (LookupError)   no request with that id
        ├── RequestStateError   (ValueError)    the state of the request does not allow the change
        ├── IdempotencyError    (ValueError)    the key was used for another request
        ├── BlockedIdsError     (ValueError)    rows of people with erasure requests
        ├── ClockError          (ValueError)    the clock is behind the ledger
        ├── KeyFileError        (OSError)       a key is missing, damaged or readable by other users
        ├── StaleWorkerError    (RuntimeError)  another worker took over; nothing was published
        ├── SignerRefusedError  (ValueError)    a claim stronger than the method permits
        ├── CertificateError    (ValueError)    a certificate, proof or bundle is not valid
        └── ResidueError        (RuntimeError)  a store still contains erased data

    LetheonWarning (UserWarning)
    ├── ShardingWarning       unsuitable shards, such as more shards than ids
    ├── CheckpointWarning     a checkpoint is missing or altered; it is rebuilt
    ├── GuaranteeWarning      a guarantee is weaker than requested
    ├── PrecisionWarning      numbers are rounded coarsely because a bound is too large
    ├── EnvironmentWarning    the model was trained with other library versions
    ├── SearchWarning         files of a store cannot be searched for erased ids
    └── ConversionWarning     parts of a converted estimator are not the same

`NotFittedError` is the class of scikit-learn.
"""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sklearn.exceptions import NotFittedError

__all__ = [
    "AssumptionError",
    "BlockedIdsError",
    "BudgetSpentError",
    "CannotForgetError",
    "CertificateError",
    "ChangedParametersError",
    "CheckpointError",
    "CheckpointWarning",
    "ClockError",
    "ConversionWarning",
    "CorruptFileError",
    "DatasetFormatError",
    "DatasetMissingError",
    "EmptyModelError",
    "EnvironmentWarning",
    "ForgetError",
    "GuaranteeWarning",
    "IdempotencyError",
    "IdsLengthError",
    "IdsTypeError",
    "InvalidParameterError",
    "KeyFileError",
    "LedgerBusyError",
    "LedgerError",
    "LedgerMissingError",
    "LedgerUnwritableError",
    "LetheonError",
    "LetheonWarning",
    "MemoryLimitError",
    "NewerFormatError",
    "NewerLedgerError",
    "NoCandidateError",
    "NotFittedError",
    "OldDatabaseError",
    "PrecisionWarning",
    "RequestStateError",
    "ResidueError",
    "SearchWarning",
    "ShardingWarning",
    "SignerRefusedError",
    "StaleWorkerError",
    "StateError",
    "TrainingError",
    "UnknownIdError",
    "UnknownModelError",
    "UnknownRequestError",
    "UnsupportedStateError",
    "UntrustedClassError",
]


def find_own_line(error: BaseException) -> tuple[str, int] | None:
    """Return the file name and line of the last letheon frame in a traceback, or None."""
    trace, place = error.__traceback__, None
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "letheon":
            place = Path(trace.tb_frame.f_code.co_filename).name, trace.tb_lineno
        trace = trace.tb_next
    return place


class LetheonError(Exception):
    """Base class of all errors of letheon.

    Examples
    --------
    >>> import letheon
    >>> try:
    ...     letheon.forget("a model", [1])
    ... except letheon.exceptions.LetheonError as error:
    ...     type(error).__name__
    'CannotForgetError'
    """


class IdsTypeError(LetheonError, TypeError):
    """The ids are neither all 64-bit integers nor all strings."""


class IdsLengthError(LetheonError, ValueError):
    """The number of ids is not the number of rows."""


class InvalidParameterError(LetheonError, ValueError, TypeError):
    """A parameter has a wrong type or value; the message states the value and what is expected.

    Examples
    --------
    >>> import letheon
    >>> letheon.DaREForestClassifier(n_estimators=0).fit([[0.0], [1.0]], [0, 1])
    Traceback (most recent call last):
    ...
    letheon.exceptions.InvalidParameterError: ...
    """


class AssumptionError(LetheonError, ValueError):
    """An assumption of the requested guarantee was checked and does not hold."""


class TrainingError(LetheonError, ValueError):
    """A network diverged or cannot be trained; nothing was changed."""


class NoCandidateError(LetheonError, ValueError):
    """No compared method is within the tolerances; the message says why each method failed."""


class DatasetMissingError(LetheonError, FileNotFoundError):
    """Files of a data set are missing; the message names them, their source and their folder."""

    # An OSError with one argument prints its text; `filename` stays None.


class DatasetFormatError(LetheonError, ValueError):
    """A data file differs from the published file in content, shape or values."""


class ForgetError(LetheonError):
    """`forget` or `learn` was rejected; the model is unchanged.

    Examples
    --------
    >>> import letheon
    >>> model = letheon.NearestCentroid().fit([[0.0], [1.0]], ["a", "b"], ids=[7, 8])
    >>> try:
    ...     model.forget([9])
    ... except letheon.exceptions.ForgetError as error:
    ...     type(error).__name__
    'UnknownIdError'
    """


class UnknownIdError(ForgetError, LookupError):
    """Some ids are not in this model."""


class EmptyModelError(ForgetError, ValueError):
    """`fit` would reject the remaining rows, so nothing was forgotten."""


class CannotForgetError(ForgetError, TypeError):
    """The object, or a step of a pipeline, is not a forgetting estimator."""


class BudgetSpentError(ForgetError, ValueError):
    """The removal would exceed the budget of the guarantee, and the model cannot be retrained."""


class ChangedParametersError(ForgetError, ValueError):
    """Parameters were changed after `fit`, so they do not match the trained model."""


class StateError(LetheonError):
    """Base class of errors when a model is encoded, saved or loaded.

    Examples
    --------
    >>> import letheon
    >>> try:
    ...     letheon.state.decode(b"not a model")
    ... except letheon.exceptions.StateError as error:
    ...     type(error).__name__
    'CorruptFileError'
    """


class UnsupportedStateError(StateError, TypeError):
    """A value in the model has no canonical bytes."""


class CorruptFileError(StateError, ValueError):
    """A file is truncated, altered, or not a letheon file."""


class MemoryLimitError(CorruptFileError):
    """Reading a file would take more memory than allowed; pass a larger `max_memory`."""


class NewerFormatError(StateError, ValueError):
    """A file has a format that this version of letheon does not support."""


class UntrustedClassError(StateError, ValueError):
    """A file contains a class or setting that is neither allowed nor trusted by the caller."""


class CheckpointError(StateError, OSError):
    """A checkpoint cannot be written to the requested directory."""


class LedgerError(LetheonError):
    """Base class of errors of a ledger; nothing was recorded unless the message says so."""


class LedgerMissingError(LedgerError, FileNotFoundError):
    """There is no ledger in that folder, or one of its files is missing."""


class NewerLedgerError(LedgerError, ValueError):
    """The ledger was written by a later version of letheon; nothing was changed."""


class OldDatabaseError(LedgerError, RuntimeError):
    """The files of a ledger are newer than its database; nothing was changed or destroyed."""


class LedgerBusyError(LedgerError, RuntimeError):
    """Another process works on the same object; try again later."""


class LedgerUnwritableError(LedgerError, OSError):
    """The disk of the ledger is full or read-only; nothing was recorded. Reading still works."""


class UnknownModelError(LedgerError, LookupError):
    """No model with that name is registered for that tenant."""


class UnknownRequestError(LedgerError, LookupError):
    """The tenant has no request with that id.

    Examples
    --------
    >>> import tempfile
    >>> from letheon.ledger import Ledger
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(folder, name="demo") as ledger:
    ...     ledger.requests.get("f" * 32)
    Traceback (most recent call last):
    ...
    letheon.exceptions.UnknownRequestError: ...
    """


class RequestStateError(LedgerError, ValueError):
    """A request cannot change from its current state to the requested state."""


class IdempotencyError(LedgerError, ValueError):
    """The idempotency key was used before, for a request with different content."""


class BlockedIdsError(LedgerError, ValueError):
    """Some rows belong to people with erasure requests and must not be trained on again.

    Examples
    --------
    >>> import tempfile
    >>> from letheon import NearestCentroid
    >>> from letheon.ledger import Ledger
    >>> X, y, people = [[0.0], [1.0], [2.0]], [0, 1, 1], ["anna", "ben", "carl"]
    >>> model = NearestCentroid().fit(X, y, ids=people)
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(folder, name="demo") as ledger:
    ...     _ = ledger.models.register(model, X, y, ids=people, name="shop")
    ...     _ = ledger.requests.submit(["ben"], model="shop", verified=True)
    ...     _ = ledger.models.register(model, X, y, ids=people, name="again")
    Traceback (most recent call last):
    ...
    letheon.exceptions.BlockedIdsError: ...
    """


class ClockError(LedgerError, ValueError):
    """The clock is behind the last event of the ledger, so due dates would be wrong."""


class KeyFileError(LedgerError, OSError):
    """A key file is missing, damaged, or readable by other users."""


class StaleWorkerError(LedgerError, RuntimeError):
    """Another worker took over; the result of this worker was not published."""


class SignerRefusedError(LedgerError, ValueError):
    """The signer rejected a claim that is stronger than permitted, or an altered file."""


class CertificateError(LedgerError, ValueError):
    """A certificate, proof or bundle is not valid; the message says which part."""


class ResidueError(LedgerError, RuntimeError):
    """A registered store still contains data of erased people."""


class LetheonWarning(UserWarning):
    """Base class of all warnings of letheon.

    Examples
    --------
    >>> from letheon.exceptions import LetheonWarning, ShardingWarning
    >>> issubclass(ShardingWarning, LetheonWarning)
    True
    """


class ShardingWarning(LetheonWarning):
    """The requested shards do not suit the number of ids.

    Examples
    --------
    >>> import warnings
    >>> from letheon import SISAClassifier
    >>> from sklearn.naive_bayes import GaussianNB
    >>> model = SISAClassifier(GaussianNB(), n_shards=3, random_state=0)
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     _ = model.fit([[0.0], [1.0]], [0, 1], ids=["anna", "ben"])
    >>> caught[0].category.__name__
    'ShardingWarning'
    """


class CheckpointWarning(LetheonWarning):
    """A checkpoint is missing or altered, so its part of the model is trained again."""


class GuaranteeWarning(LetheonWarning):
    """A model has a weaker guarantee than requested; the message says why."""


class PrecisionWarning(LetheonWarning):
    """Numbers are rounded coarsely, because a bound is much larger than the numbers.

    Examples
    --------
    >>> import warnings
    >>> from letheon import DaREForestRegressor
    >>> model = DaREForestRegressor(n_estimators=1, y_max=1e6, random_state=0)
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     _ = model.fit([[0.0], [1.0]], [1e-9, 2e-9])
    >>> caught[0].category.__name__
    'PrecisionWarning'
    """


class EnvironmentWarning(LetheonWarning):
    """The installed library versions differ from those that the model was trained with."""


class SearchWarning(LetheonWarning):
    """Files of a registered store cannot be searched for erased ids; the message names some."""


class ConversionWarning(LetheonWarning):
    """Parts of an estimator were converted to parts that are not the same.

    Examples
    --------
    >>> import warnings
    >>> import letheon
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     _ = letheon.convert(RandomForestClassifier())
    >>> caught[0].category.__name__
    'ConversionWarning'
    """


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the first caller outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "letheon"


def __getattr__(name: str) -> Any:
    """Return scikit-learn's `NotFittedError`, which is imported only when it is needed."""
    if name == "NotFittedError":
        from sklearn.exceptions import NotFittedError

        return NotFittedError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
