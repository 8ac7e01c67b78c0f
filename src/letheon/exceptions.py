"""Every error and warning that letheon raises by name.

::

    LetheonError
    ├── IdsTypeError          (TypeError)    ids of a wrong kind, or of mixed kinds
    ├── IdsLengthError        (ValueError)   not one id per row
    ├── InvalidParameterError (ValueError, TypeError)  a parameter of a wrong type or value
    ├── AssumptionError       (ValueError)   what a guarantee rests on does not hold
    ├── TrainingError         (ValueError)   a net diverged, or is not one that can be trained
    ├── NoCandidateError      (ValueError)   no method is within the tolerances
    ├── DatasetMissingError   (FileNotFoundError)  files of a data set are not there
    ├── DatasetFormatError    (ValueError)   a file is not the one that the provider publishes
    ├── ForgetError
    │   ├── UnknownIdError    (LookupError)  nobody of that id is held
    │   ├── EmptyModelError   (ValueError)   nothing left that `fit` would accept
    │   ├── CannotForgetError (TypeError)    this object has no way to forget
    │   ├── BudgetSpentError  (ValueError)   the certificate covers no further removal
    │   └── ChangedParametersError (ValueError)  set_params after fit; fit again
    ├── StateError
    │   ├── UnsupportedStateError (TypeError)   a value with no canonical bytes
    │   ├── CorruptFileError      (ValueError)  truncated or altered
    │   │   └── MemoryLimitError               reading it would take too much memory
    │   ├── NewerFormatError      (ValueError)  written by a later letheon
    │   ├── UntrustedClassError   (ValueError)  has a class or setting nobody allowed
    │   └── CheckpointError       (OSError)     a checkpoint cannot be written
    └── LedgerError
        ├── LedgerMissingError  (FileNotFoundError)  no ledger in that folder
        ├── NewerLedgerError    (ValueError)    a later letheon wrote this ledger
        ├── OldDatabaseError    (RuntimeError)  the files are newer than the database
        ├── LedgerBusyError     (RuntimeError)  another process holds it
        ├── LedgerUnwritableError (OSError)     its disk is full or read-only; reading works
        ├── UnknownModelError   (LookupError)   no model of that name here
        ├── UnknownRequestError (LookupError)   no request of that id here
        ├── RequestStateError   (ValueError)    a request cannot go there from its state
        ├── IdempotencyError    (ValueError)    the key was used for another request
        ├── BlockedIdsError     (ValueError)    rows of people who asked to be erased
        ├── ClockError          (ValueError)    the clock went back
        ├── KeyFileError        (OSError)       a key is missing, damaged or open to others
        ├── StaleWorkerError    (RuntimeError)  another worker took over; nothing was published
        ├── SignerRefusedError  (ValueError)    a claim stronger than the method permits
        ├── CertificateError    (ValueError)    a certificate, proof or bundle does not hold
        └── ResidueError        (RuntimeError)  a store still holds what was to be erased

    LetheonWarning (UserWarning)
    ├── ShardingWarning       more shards than people, and the like
    ├── CheckpointWarning     a checkpoint is missing or altered; it is rebuilt
    ├── GuaranteeWarning      a guarantee is weaker than what was asked for
    ├── PrecisionWarning      numbers are rounded coarsely, by a bound that is too large
    ├── EnvironmentWarning    the model was built with other library versions
    └── SearchWarning         files of a store cannot be searched for erased people

`NotFittedError` is scikit-learn's own and is reachable here under that name.
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
    """Return the file name and line of letheon that an error passed last; None for no such line."""
    trace, place = error.__traceback__, None
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "letheon":
            place = Path(trace.tb_frame.f_code.co_filename).name, trace.tb_lineno
        trace = trace.tb_next
    return place


class LetheonError(Exception):
    """Base of every error that letheon raises by name."""


class IdsTypeError(LetheonError, TypeError):
    """Ids are not all int (64 bits) or all str."""


class IdsLengthError(LetheonError, ValueError):
    """The number of ids is not the number of rows."""


class InvalidParameterError(LetheonError, ValueError, TypeError):
    """A parameter has a wrong type or value; the text says what was given and what is expected."""


class AssumptionError(LetheonError, ValueError):
    """Something that the wanted guarantee rests on was looked at and does not hold."""


class TrainingError(LetheonError, ValueError):
    """A net diverged, or does not have the form that training needs; nothing was changed."""


class NoCandidateError(LetheonError, ValueError):
    """No method that was compared is within the tolerances; the text says who failed in what."""


class DatasetMissingError(LetheonError, FileNotFoundError):
    """Files of a data set are not there; the text says which, from whom, and where to put them."""

    # An OSError of one argument prints its text; `filename` stays None.


class DatasetFormatError(LetheonError, ValueError):
    """A file is not the one that the provider publishes: other content, shape or values."""


class ForgetError(LetheonError):
    """A `forget` (or `learn`) was refused; the model is as it was."""


class UnknownIdError(ForgetError, LookupError):
    """Some ids belong to nobody in this model."""


class EmptyModelError(ForgetError, ValueError):
    """`fit` on the remaining rows would raise, so nothing was forgotten."""


class CannotForgetError(ForgetError, TypeError):
    """The object is no forgetting estimator, or holds a step that is none."""


class BudgetSpentError(ForgetError, ValueError):
    """The removal would leave more than the certificate covers, and nothing can repair that."""


class ChangedParametersError(ForgetError, ValueError):
    """Parameters were changed after `fit`; states of the old ones are not reused."""


class StateError(LetheonError):
    """A model could not be turned into canonical bytes, or back."""


class UnsupportedStateError(StateError, TypeError):
    """A value in the model has no canonical bytes."""


class CorruptFileError(StateError, ValueError):
    """A file is truncated, altered, or no letheon file."""


class MemoryLimitError(CorruptFileError):
    """Reading a file would take more memory than allowed; `max_memory` raises the limit."""


class NewerFormatError(StateError, ValueError):
    """A file was written in a format that this version does not know."""


class UntrustedClassError(StateError, ValueError):
    """A file names a class, or has a setting, that is neither allowed nor trusted by the caller."""


class CheckpointError(StateError, OSError):
    """A checkpoint cannot be written where the caller wants it."""


class LedgerError(LetheonError):
    """Something about an erasure ledger; nothing was recorded unless the text says so."""


class LedgerMissingError(LedgerError, FileNotFoundError):
    """There is no ledger in that folder, or a file of it is gone."""


class NewerLedgerError(LedgerError, ValueError):
    """The ledger was written by a later letheon; nothing was changed."""


class OldDatabaseError(LedgerError, RuntimeError):
    """The files of a ledger are newer than its database; nothing was changed or destroyed."""


class LedgerBusyError(LedgerError, RuntimeError):
    """Another process is at work on the same thing; try again."""


class LedgerUnwritableError(LedgerError, OSError):
    """The disk of the ledger is full or read-only; nothing was recorded, and reading works."""


class UnknownModelError(LedgerError, LookupError):
    """No model of that name is registered for that tenant."""


class UnknownRequestError(LedgerError, LookupError):
    """No request of that id is known to that tenant."""


class RequestStateError(LedgerError, ValueError):
    """A request cannot go to that state from the one it is in."""


class IdempotencyError(LedgerError, ValueError):
    """The idempotency key was used before, for a request with another content."""


class BlockedIdsError(LedgerError, ValueError):
    """Rows of people who asked to be erased are not trained on again."""


class ClockError(LedgerError, ValueError):
    """The clock is behind what the ledger has recorded; due dates would be wrong."""


class KeyFileError(LedgerError, OSError):
    """A key file is missing, damaged, or readable by others."""


class StaleWorkerError(LedgerError, RuntimeError):
    """Another worker took over; what this one computed was not published."""


class SignerRefusedError(LedgerError, ValueError):
    """The signer refused: a claim is stronger than permitted, or a file was altered."""


class CertificateError(LedgerError, ValueError):
    """A certificate, a proof or a bundle does not hold; the text says where."""


class ResidueError(LedgerError, RuntimeError):
    """A registered store still holds something of erased people."""


class LetheonWarning(UserWarning):
    """Base of every warning that letheon gives by name."""


class ShardingWarning(LetheonWarning):
    """The shards asked for do not suit the people at hand."""


class CheckpointWarning(LetheonWarning):
    """A saved state is missing or altered; it is trained again."""


class GuaranteeWarning(LetheonWarning):
    """A model is covered by a weaker guarantee than was asked for; the text says why."""


class PrecisionWarning(LetheonWarning):
    """Numbers are rounded coarsely, because a bound that was given is far beyond them."""


class EnvironmentWarning(LetheonWarning):
    """The model was built with other library versions than those present."""


class SearchWarning(LetheonWarning):
    """Files of a registered store cannot be searched for erased people; the text names some."""


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn in the name of the first line outside this package: that is whom it concerns."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "letheon"


def __getattr__(name: str) -> Any:
    """Return scikit-learn's `NotFittedError` without importing it earlier."""
    if name == "NotFittedError":
        from sklearn.exceptions import NotFittedError

        return NotFittedError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
