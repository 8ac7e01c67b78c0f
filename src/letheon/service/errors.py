"""Errors as ``application/problem+json`` (RFC 9457): what was given, expected, and what to do.

The text of an error of the library is shown where it holds codes and counts only. Errors about ids
would quote people, so they have texts of their own here. A value that was refused is never echoed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from letheon import exceptions as errors
from letheon.ledger.db.engines import CANNOT_WRITE, UNWRITABLE
from letheon.verifier import VerificationError

PREFIX = "urn:letheon:problem:"
MEDIA_TYPE = "application/problem+json"
_RETRY_SECONDS = "1"
# Deeper than any field of ours; a caller's own keys may be longer than is of use.
_LONGEST_PLACE = 200


class Problem(HTTPException):
    """An error to be shown to the caller.

    Parameters
    ----------
    status : int
        Status of the answer.
    code : str
        What programs look at; it becomes a part of ``type``.
    title, detail : str
        What happened; what to do about it.
    headers : mapping, optional
        Of the answer.
    fields : sequence of dict, optional
        Which values were refused, and why.
    """

    def __init__(
        self,
        status: int,
        code: str,
        title: str,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        fields: list[dict[str, str]] | None = None,
    ) -> None:
        super().__init__(status, detail=detail, headers=headers)
        self.code = code
        self.title = title
        self.fields = fields

    def to_dict(self, instance: str) -> dict[str, Any]:
        """Return the document."""
        found: dict[str, Any] = {
            "type": PREFIX + self.code,
            "title": self.title,
            "status": self.status_code,
            "detail": self.detail,
            "instance": instance,
        }
        return found if self.fields is None else found | {"errors": self.fields}


# What differs is for operators, `letheon doctor` says it: numbers of the ledger are no tenant's.
OLD_DATABASE = Problem(
    503,
    "old-database",
    "the database is older than the files",
    "Nothing is recorded until an operator puts the newer database back.",
)

_LOOK = "Look at the ids that you sent."
# Status, code, title, and a detail where the text of the error could name people. The first that
# fits decides, so special cases stand above what they are cases of.
_KNOWN: tuple[tuple[Any, ...], ...] = (
    (
        errors.UnknownIdError,
        422,
        "unknown-ids",
        "at least one id is not in the model; none was taken",
        _LOOK,
    ),
    (
        errors.IdsTypeError,
        422,
        "ids",
        "the ids are not of the kind that the model has: texts or numbers",
        _LOOK,
    ),
    (errors.UnknownModelError, 404, "unknown-model", "no such model"),
    (errors.UnknownRequestError, 404, "unknown-request", "no such request"),
    (errors.LedgerMissingError, 404, "not-there", "not there"),
    (errors.IdempotencyError, 422, "key-used", "the idempotency key was used for something else"),
    (errors.RequestStateError, 409, "wrong-state", "the request is not in a state for that"),
    (errors.BlockedIdsError, 409, "blocked", "people who asked to be erased are among the rows"),
    (errors.LedgerBusyError, 503, "busy", "the ledger is busy"),
    (errors.StaleWorkerError, 503, "busy", "the ledger is busy"),
    (errors.LedgerUnwritableError, 507, "unwritable", "the ledger cannot be written"),
    (errors.ClockError, 503, "clock", "the clock of the server went wrong"),
    (errors.CertificateError, 409, "certificate", "a certificate does not hold"),
    (errors.ResidueError, 409, "residue", "something of an erased person was found"),
    (errors.LedgerError, 409, "refused", "the ledger refused"),
    (errors.StateError, 422, "model-file", "this is no model file that can be used"),
    (errors.ForgetError, 422, "cannot-forget", "the model cannot forget that"),
    (VerificationError, 409, "not-verified", "it does not verify"),
)


@contextmanager
def cursor_problems(detail: str = "") -> Iterator[None]:
    """Turn a `ValueError` into the answer for a value of `after` that no part of the list gave."""
    try:
        yield
    except ValueError as error:
        raise Problem(422, "cursor", "after cannot be used", detail or str(error)) from error


def problem_of(error: BaseException) -> Problem | None:
    """Return an error as it is shown, or None for a mistake in the program."""
    if isinstance(error, Problem | errors.OldDatabaseError):
        return error if isinstance(error, Problem) else OLD_DATABASE
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        title = str(error.detail or "refused").lower()
        code = {404: "not-found", 405: "method", 400: "body"}.get(error.status_code, "refused")
        return Problem(
            error.status_code,
            code,
            title,
            _ADVICE.get(error.status_code, title),
            headers=error.headers,
        )
    return _of_library(error)


def _of_library(error: BaseException) -> Problem | None:
    for kind, status, code, title, *detail in _KNOWN:
        if isinstance(error, kind):
            headers = {"Retry-After": _RETRY_SECONDS} if status == 503 else None
            return Problem(status, code, title, *(detail or [str(error)]), headers=headers)
    if isinstance(error, errors.LetheonError):  # its text may quote what was given
        return Problem(422, "refused", "letheon refused", f"It is a {type(error).__name__}.")
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return _of_library(errors.LedgerUnwritableError(CANNOT_WRITE))
    if isinstance(error, SQLAlchemyError):
        headers = {"Retry-After": _RETRY_SECONDS}
        return Problem(503, "database", "the database failed", "Try again.", headers=headers)
    return None


_ADVICE = {
    404: "There is nothing under this address; /openapi.json lists what there is.",
    405: "The Allow header names the methods that this address knows.",
    400: "The body could not be read; send what the media type says.",
}


def _invalid(error: RequestValidationError) -> Problem:
    """Say which values were refused and why, without the values."""
    fields = [
        {"at": "/".join(_place(one))[:_LONGEST_PLACE], "why": _reason(one)}
        for one in error.errors()
    ]
    where = ", ".join(dict.fromkeys(field["at"] for field in fields))
    detail = f"Look at: {where[:1000]}."
    return Problem(422, "invalid", "some values cannot be used", detail, fields=fields)


def _place(found: Any) -> list[str]:
    """Return where a value stood; a name that is not ours is the caller's, and not repeated."""
    parts = [str(part) for part in found["loc"]]
    return parts[:-1] if found["type"] == "extra_forbidden" else parts


def _reason(found: Any) -> str:
    """Return the validator's reason; one that was raised by hand may quote what was given."""
    known = found["type"] not in ("value_error", "assertion_error", "json_invalid")
    message = str(found["msg"]) if known or found.get("ctx", {}).get("safe") else "not usable"
    return message[:_LONGEST_PLACE]


def respond(request: Request, problem: Problem) -> Response:
    """Return a problem as an answer."""
    return JSONResponse(
        problem.to_dict(str(request.scope.get("letheon_call", ""))),
        status_code=problem.status_code,
        headers=dict(problem.headers or {}),
        media_type=MEDIA_TYPE,
    )
