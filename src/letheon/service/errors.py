"""Errors as ``application/problem+json`` (RFC 9457): what is wrong, what is expected, what to do.

The text of a library error is shown if it contains only codes and counts. Errors about ids could
quote personal data, so they have their own texts here. A rejected value is never echoed.
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
# Longer than any field path of the API; keys sent by a caller may be longer.
_LONGEST_PLACE = 200


class ApiProblem(HTTPException):
    """An error that is shown to the caller.

    Parameters
    ----------
    status : int
        HTTP status.
    code : str
        Code for programs; it becomes a part of ``type``.
    title : str
        What is wrong.
    detail : str
        What to do about it.
    headers : mapping, optional
        Headers of the response.
    fields : sequence of dict, optional
        Rejected fields, with reasons.
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
        """Return the JSON document; `instance` is the id of the call."""
        document: dict[str, Any] = {
            "type": PREFIX + self.code,
            "title": self.title,
            "status": self.status_code,
            "detail": self.detail,
            "instance": instance,
        }
        return document if self.fields is None else document | {"errors": self.fields}


# `letheon doctor` shows the differences to operators; tenants must not see the ledger's counts.
OLD_DATABASE = ApiProblem(
    503,
    "old-database",
    "the database is older than the files",
    "The desk is read-only until an operator restores the newer database.",
)

_LOOK = "Check the ids in your request."
# Status, code, title, and a detail if the text of the error could contain ids. The first match
# decides, so subclasses come before their base classes.
_KNOWN: tuple[tuple[Any, ...], ...] = (
    (
        errors.UnknownIdError,
        422,
        "unknown-ids",
        "at least one id is not in the model; no id was accepted",
        _LOOK,
    ),
    (
        errors.IdsTypeError,
        422,
        "ids",
        "the ids do not have the type of the model's ids: strings or integers",
        _LOOK,
    ),
    (errors.UnknownModelError, 404, "unknown-model", "no such model"),
    (errors.UnknownRequestError, 404, "unknown-request", "no such request"),
    (errors.LedgerMissingError, 404, "not-there", "not found"),
    (errors.IdempotencyError, 422, "key-used", "the idempotency key was used for another request"),
    (errors.RequestStateError, 409, "wrong-state", "the request is in the wrong state"),
    (errors.BlockedIdsError, 409, "blocked", "the rows contain ids with an erasure request"),
    (errors.LedgerBusyError, 503, "busy", "the ledger is busy"),
    (errors.StaleWorkerError, 503, "busy", "the ledger is busy"),
    (errors.LedgerUnwritableError, 507, "unwritable", "the ledger is not writable"),
    (errors.ClockError, 503, "clock", "the clock of the server is wrong"),
    (errors.CertificateError, 409, "certificate", "a certificate is not valid"),
    (errors.ResidueError, 409, "residue", "data of an erased person was found"),
    (errors.LedgerError, 409, "refused", "refused by the ledger"),
    (errors.StateError, 422, "model-file", "the model file cannot be used"),
    (errors.ForgetError, 422, "cannot-forget", "the model cannot forget these ids"),
    (VerificationError, 409, "not-verified", "the verification failed"),
)


@contextmanager
def cursor_problems(detail: str = "") -> Iterator[None]:
    """Turn a `ValueError` into the problem for an invalid query parameter `after`."""
    try:
        yield
    except ValueError as error:
        raise ApiProblem(
            422, "cursor", "the parameter `after` is not valid", detail or str(error)
        ) from error


def problem_of(error: BaseException) -> ApiProblem | None:
    """Return the problem that is shown for an error; None for an internal error."""
    if isinstance(error, ApiProblem | errors.OldDatabaseError):
        return error if isinstance(error, ApiProblem) else OLD_DATABASE
    if isinstance(error, RequestValidationError):
        return _validation_problem(error)
    if isinstance(error, HTTPException):
        title = str(error.detail or "refused").lower()
        code = {404: "not-found", 405: "method", 400: "body"}.get(error.status_code, "refused")
        return ApiProblem(
            error.status_code,
            code,
            title,
            _ADVICE.get(error.status_code, title),
            headers=error.headers,
        )
    return _library_problem(error)


def _library_problem(error: BaseException) -> ApiProblem | None:
    for kind, status, code, title, *detail in _KNOWN:
        if isinstance(error, kind):
            headers = {"Retry-After": _RETRY_SECONDS} if status == 503 else None
            return ApiProblem(status, code, title, *(detail or [str(error)]), headers=headers)
    if isinstance(error, errors.LetheonError):  # its text may quote the caller's values
        return ApiProblem(422, "refused", "refused", f"The error is {type(error).__name__}.")
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return _library_problem(errors.LedgerUnwritableError(CANNOT_WRITE))
    if isinstance(error, SQLAlchemyError):
        headers = {"Retry-After": _RETRY_SECONDS}
        return ApiProblem(503, "database", "the database failed", "Try again.", headers=headers)
    return None


_ADVICE = {
    404: "There is no such resource; /openapi.json lists all routes.",
    405: "The Allow header lists the methods of this resource.",
    400: "The body could not be read; it must match its media type.",
}


def _validation_problem(error: RequestValidationError) -> ApiProblem:
    """Return the problem for invalid fields, with their paths and reasons but not their values."""
    fields = [
        {"at": "/".join(_field_path(details))[:_LONGEST_PLACE], "why": _field_reason(details)}
        for details in error.errors()
    ]
    where = ", ".join(dict.fromkeys(field["at"] for field in fields))
    detail = f"Check: {where[:1000]}."
    return ApiProblem(422, "invalid", "some values are not valid", detail, fields=fields)


def _field_path(error: Any) -> list[str]:
    """Return the path of a field, without the name of an unknown field.

    The caller chose that name, so it is not repeated.
    """
    parts = [str(part) for part in error["loc"]]
    return parts[:-1] if error["type"] == "extra_forbidden" else parts


def _field_reason(error: Any) -> str:
    """Return why a field is not valid, as the validator says.

    The reason is "not valid" for custom errors that may quote the value.
    """
    known = error["type"] not in ("value_error", "assertion_error", "json_invalid")
    message = str(error["msg"]) if known or error.get("ctx", {}).get("safe") else "not valid"
    return message[:_LONGEST_PLACE]


def make_response(request: Request, problem: ApiProblem) -> Response:
    """Return the response for a problem: its JSON document, status and headers."""
    return JSONResponse(
        problem.to_dict(str(request.scope.get("letheon_call", ""))),
        status_code=problem.status_code,
        headers=dict(problem.headers or {}),
        media_type=MEDIA_TYPE,
    )
