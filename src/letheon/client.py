"""A client of the erasure desk that needs Python's standard library only.

::

    from letheon.client import Client

    desk = Client("https://desk.example.org", token)
    request = desk.request(["c-17"], model="risk")
    desk.wait(request["id"], until="certified")

Answers are plain dicts and lists, as the API's document (``/openapi.json``) describes them. Calls
that are safe to repeat are repeated when the connection breaks or the desk is busy; `request` is
safe, because it carries a key of its own. Redirects are not followed, so that the token goes to
the desk and nowhere else.

::

    DeskError (LetheonError)       the desk said no, or nothing
    ├── NotAllowed                 401, 403: no valid token, or one that may not do that
    ├── NotFound                   404: nothing of that name, or somebody else's
    ├── Refused                    400, 409, 413, 422: not like that, or not now
    └── TryAgain                   429, 5xx, no answer: the same call may go well later
"""

import json
import random
import shutil
import ssl
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from letheon.exceptions import LetheonError

__all__ = ["Client", "DeskError", "NotAllowed", "NotFound", "Refused", "TryAgain"]

Json = dict[str, Any]
_T = TypeVar("_T")

_LINE = (
    *("received", "verified", "queued", "applying", "applied", "certified", "purging", "purged"),
    "closed",
)
_SIDE = ("rejected", "cancelled")
_LONGEST_PAUSE = 30.0
_PAGE = 200
_BUSY = frozenset({429, 502, 503, 504})
_NOT_DONE = frozenset({429, 503})


class DeskError(LetheonError):
    """The desk said no, or nothing.

    Attributes
    ----------
    status : int or None
        Status of the answer; None if there was none.
    code : str
        What programs look at, such as ``unknown-request``.
    title, detail : str
        What happened, and what to do.
    """

    def __init__(self, status: int | None, code: str, title: str, detail: str = "") -> None:
        super().__init__(f"{title}: {detail}" if detail else title)
        self.status = status
        self.code = code
        self.title = title
        self.detail = detail


class NotAllowed(DeskError):  # noqa: N818 - what the desk says
    """The token is not valid, or may not do that."""


class NotFound(DeskError):  # noqa: N818
    """There is nothing of that name, or it is somebody else's."""


class Refused(DeskError):  # noqa: N818
    """What was sent cannot be used, or not in this state."""


class TryAgain(DeskError):  # noqa: N818
    """The desk was busy or could not be reached; the same call may go well later."""


_KINDS: dict[int, type[DeskError]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound}


class Client:
    """A client of one desk; threads may share it.

    Parameters
    ----------
    url : str
        Where the desk is: ``https://desk.example.org``, or ``http://localhost:8311``.
    token : str
        From ``letheon token add`` or the desk's page of tokens.
    timeout : float, default=30
        Seconds to wait for an answer.
    retries : int, default=4
        How often a call is repeated that may be.
    context : ssl.SSLContext, optional
        For a desk with a certificate of an own authority.

    Raises
    ------
    ValueError
        The address is no http or https one.

    Examples
    --------
    >>> Client("http://localhost:8311", "lth_...")
    Client('http://localhost:8311')
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout: float = 30,
        retries: int = 4,
        context: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError(f"{url!r} is no address of a desk; expected https://desk.example.org")
        self.url = url.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._retries = retries
        secure = urllib.request.HTTPSHandler(context=context or ssl.create_default_context())
        self._opener = urllib.request.build_opener(secure, _NoRedirect())

    def __repr__(self) -> str:
        """Where the desk is; never the token."""
        return f"Client({self.url!r})"

    def request(
        self,
        ids: Sequence[int] | Sequence[str],
        *,
        model: str,
        key: str | None = None,
        **options: Any,
    ) -> Json:
        """File a request; it is on the desk's disk when this returns.

        Parameters
        ----------
        ids : sequence of int or of str
            The people.
        model : str
            From which model; ``*`` for every one that knows them.
        key : str, optional
            Idempotency key: the same key with the same content gives the same request again. By
            default a random one, so that a repeated call files one request.
        **options
            ``tenant``, ``regime``, ``ground``, ``verified``, ``receipt``, as the API has them.
        """
        body = {"model": model, "ids": list(ids), **options}
        return self._keyed("/api/v1/requests", body, key)

    def bulk(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        tenant: str | None = None,
        key: str | None = None,
    ) -> Json:
        """File many requests, each for itself: ``{"model": …, "ids": […], …}``, 1000 at most.

        The answer's ``items`` say what became of each, in their order.
        """
        body = {"items": [dict(item) for item in items]} | _given(tenant=tenant)
        return self._keyed("/api/v1/requests/bulk", body, key)

    def upload_csv(
        self,
        file: str | Path | bytes,
        *,
        tenant: str | None = None,
        verified: bool = False,
        key: str | None = None,
    ) -> Json:
        """File each line of a CSV file: columns model, id, and perhaps key, regime, ground."""
        data = file if isinstance(file, bytes) else Path(file).read_bytes()
        fields = _given(tenant=tenant) | ({"verified": "true"} if verified else {})
        body, kind = _form(data, fields)
        headers = {"Content-Type": kind, "Idempotency-Key": key or str(uuid.uuid4())}
        return self._json("POST", "/api/v1/requests/upload", body, headers)

    def requests(self, **filters: Any) -> Iterator[Json]:
        """Yield requests, fetched part by part.

        Parameters
        ----------
        **filters
            ``model``, ``tenant``, ``state`` (one or a list), ``regime``, ``overdue``,
            ``due_before``, ``search``, ``order``.
        """
        return self._pages("/api/v1/requests", filters)

    def find(self, request_id: str) -> Json:
        """Return a request as it is now."""
        return self._get(f"/api/v1/requests/{_part(request_id)}")

    def timeline(self, request_id: str) -> list[Json]:
        """Return what happened to a request, oldest first."""
        return list(self._pages(f"/api/v1/requests/{_part(request_id)}/timeline", {}, limit=None))

    def summary(self, **filters: Any) -> Json:
        """Return counts of requests by state and by days left."""
        return self._get("/api/v1/summary", filters)

    def wait(
        self,
        request_id: str,
        until: str = "certified",
        *,
        timeout: float = 600,
        pause: float = 1.0,
    ) -> Json:
        """Return a request when it has come so far.

        Parameters
        ----------
        request_id : str
            Which one.
        until : str, default="certified"
            A state on the way from ``received`` to ``closed``. Somebody who is erased by another
            request is certified when that one is.
        timeout : float, default=600
            Seconds.
        pause : float, default=1.0
            Seconds between two looks.

        Raises
        ------
        Refused
            It was rejected or cancelled.
        TimeoutError
            It has not come so far yet.
        """
        if until not in _LINE:
            raise ValueError(f"until={until!r} must be one of {', '.join(_LINE)}")
        end = time.monotonic() + timeout
        while True:
            found = self.find(request_id)
            if _has_reached(found, until):
                return found
            if found["state"] in _SIDE:
                raise Refused(409, found["state"], f"the request was {found['state']}")
            if time.monotonic() + pause > end:
                raise TimeoutError(f"the request is {found['state']}, not yet {until}")
            time.sleep(pause)

    def verify(self, request_id: str) -> Json:
        """Record that the identity was verified; the request goes on."""
        return self._act(request_id, "verify")

    def await_identity(self, request_id: str) -> Json:
        """Record that a proof of identity was asked for."""
        return self._act(request_id, "await-identity")

    def approve(self, request_id: str) -> Json:
        """Let a large request go on, as a second pair of eyes."""
        return self._act(request_id, "approve")

    def reject(self, request_id: str, ground: str) -> Json:
        """Refuse a request on a legal ground."""
        return self._act(request_id, "reject", {"ground": ground})

    def cancel(self, request_id: str) -> Json:
        """Withdraw a request that no batch has taken up."""
        return self._act(request_id, "cancel")

    def hold(self, request_id: str, ground: str, until: str) -> Json:
        """Put a request off on a legal ground, until a day YYYY-MM-DD."""
        return self._act(request_id, "hold", {"ground": ground, "until": until})

    def release(self, request_id: str) -> Json:
        """End a hold."""
        return self._act(request_id, "release")

    def extend(self, request_id: str) -> Json:
        """Put the due day off; the person was told."""
        return self._act(request_id, "extend")

    def retry(self, request_id: str) -> Json:
        """Try a failed request again."""
        return self._act(request_id, "retry")

    def tell(self, request_id: str, recipients: int) -> Json:
        """Record that so many recipients of the data were told."""
        return self._act(request_id, "tell", {"recipients": recipients})

    def answer(self, request_id: str, *, recipients: int = 0) -> Json:
        """Close a purged request: the person was answered."""
        return self._act(request_id, "answer", {"recipients": recipients})

    def models(self, **filters: Any) -> list[Json]:
        """Return the models."""
        return list(self._pages("/api/v1/models", filters))

    def model(self, name: str, **filters: Any) -> Json:
        """Return one model."""
        return self._get(f"/api/v1/models/{_part(name)}", filters)

    def history(self, model: str, **filters: Any) -> Json:
        """Return the measures of a model's versions over time."""
        return self._get(f"/api/v1/models/{_part(model)}/history", filters)

    def plan(self, model: str, **filters: Any) -> Json:
        """Return what the next batch of a model would be."""
        return self._get(f"/api/v1/models/{_part(model)}/plan", filters)

    def what_if(self, model: str, *, wait: bool = True, **options: Any) -> Json:
        """Have every method tried on a batch: its cost and what would be guaranteed."""
        return self._job(f"/api/v1/models/{_part(model)}/what-if", options, wait=wait)

    def apply(self, model: str, *, wait: bool = True, **options: Any) -> Json:
        """Apply what is queued for a model now."""
        return self._job(f"/api/v1/models/{_part(model)}/apply", options, wait=wait)

    def retrain(self, model: str, *, wait: bool = True, **options: Any) -> Json:
        """Train a model afresh, with everything that is queued for it."""
        return self._job(f"/api/v1/models/{_part(model)}/retrain", options, wait=wait)

    def job(self, job_id: str) -> Json:
        """Return a job as it is now."""
        return self._get(f"/api/v1/jobs/{_part(job_id)}")

    def certificates(self, **filters: Any) -> Iterator[Json]:
        """Yield what certificates say in short, fetched part by part."""
        return self._pages("/api/v1/certificates", filters)

    def certificate(self, number: int) -> bytes:
        """Return a certificate itself: the envelope, as it was signed."""
        return self._call("GET", f"/api/v1/certificates/{int(number)}/envelope", _all)

    def verify_certificate(self, number: int, key: str) -> Json:
        """Return what a certificate claims, after its signature was checked here.

        It shows who signed it. That it has its place in the chain and in the log, and that the
        proofs hold, is shown by the bundle: `bundle`, then `letheon.verifier.verify_bundle`.

        Parameters
        ----------
        number : int
            Which one.
        key : str
            The first public key of the ledger in hexadecimal digits, from another source.

        Raises
        ------
        letheon.verifier.Refused
            The signature, the schema or the keys do not hold.
        """
        from letheon.verifier import UNLEARNING, Trust, open_envelope, require

        keys = self._get("/api/v1/keys")
        statements = [text.encode() for text in keys.get("statements", [])]
        opened = open_envelope(self.certificate(number), Trust.from_pinned(key, statements))
        require(opened.statement["predicateType"] == UNLEARNING, "this is no certificate")
        require(opened.sequence == number, f"this is certificate {opened.sequence}")
        return opened.statement

    def bundle(self, path: str | Path, *, tier: Literal["public", "auditor"] = "public") -> Path:
        """Write what others may verify into a zip file, and return its path."""
        target = Path(path)
        query = urlencode({"tier": tier})
        part = target.with_name(f".{target.name}.partial")
        try:
            self._call("GET", f"/api/v1/bundle?{query}", lambda answer: _save(answer, part))
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return target

    def audit(self, *, wait: bool = True, **options: Any) -> Json:
        """Have the ledger audited: ``model``, ``levels``, ``drill`` as the API has them."""
        started = self._post("/api/v1/audits", options)
        return self._over(f"/api/v1/audits/{_part(started['id'])}", started) if wait else started

    def check_receipt(self, code: str) -> Json:
        """Say whether a certificate covers a person's receipt; it needs no token."""
        return self._post("/api/v1/receipts/check", {"code": code}, is_safe=True)

    def me(self) -> Json:
        """Return what the desk knows about this token."""
        return self._get("/api/v1/me")

    def tokens(self, **filters: Any) -> Iterator[Json]:
        """Yield tokens, without their texts."""
        return self._pages("/api/v1/tokens", filters)

    def add_token(self, name: str, role: str, **options: Any) -> Json:
        """Make a token; its text is in the answer and nowhere else."""
        return self._post("/api/v1/tokens", {"name": name, "role": role, **options})

    def revoke_token(self, token_id: str) -> None:
        """Take a token back."""
        self._json("DELETE", f"/api/v1/tokens/{_part(token_id)}", is_safe=False)

    def webhooks(self, **filters: Any) -> Iterator[Json]:
        """Yield webhooks, without their secrets."""
        return self._pages("/api/v1/webhooks", filters)

    def add_webhook(self, url: str, events: Sequence[str], **options: Any) -> Json:
        """Make a webhook; its secret is in the answer and nowhere else."""
        return self._post("/api/v1/webhooks", {"url": url, "events": list(events), **options})

    def remove_webhook(self, webhook_id: str) -> None:
        """Remove a webhook."""
        self._json("DELETE", f"/api/v1/webhooks/{_part(webhook_id)}", is_safe=False)

    def _act(self, request_id: str, action: str, body: Json | None = None) -> Json:
        return self._post(f"/api/v1/requests/{_part(request_id)}/{action}", body)

    def _keyed(self, path: str, body: Json, key: str | None) -> Json:
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._json("POST", path, json.dumps(body).encode(), headers)

    def _job(self, path: str, options: Json, *, wait: bool) -> Json:
        started = self._post(path + _query(options))
        return self._over(f"/api/v1/jobs/{_part(started['id'])}", started) if wait else started

    def _post(self, path: str, body: Json | None = None, *, is_safe: bool = False) -> Json:
        data = None if body is None else json.dumps(body).encode()
        return self._json("POST", path, data, is_safe=is_safe)

    def _over(self, path: str, started: Json) -> Json:
        """Look at a job until it is over; one that failed is an error."""
        found, pause = started, 0.2
        while not found["is_over"]:
            time.sleep(pause)
            pause = min(1.5 * pause, 5.0)
            found = self._get(path)
        problem = found.get("problem")
        if problem:
            raise Refused(None, problem["code"], "the job failed", problem["words"])
        return found

    def _pages(self, path: str, filters: Json, limit: int | None = _PAGE) -> Iterator[Json]:
        after: Json = _given(limit=limit)
        while True:
            page = self._get(path, {**filters, **after})
            yield from page["items"]
            if page["next"] is None:
                return
            after = _given(limit=limit, after=page["next"])

    def _get(self, path: str, query: Json | None = None) -> Json:
        return self._json("GET", path + _query(query or {}))

    def _json(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        is_safe: bool = True,
    ) -> Json:
        data = self._call(method, path, _all, body, headers, is_safe=is_safe)
        found: Json = json.loads(data) if data else {}
        return found

    def _call(
        self,
        method: str,
        path: str,
        read: Callable[[HTTPResponse], _T],
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        is_safe: bool = True,
    ) -> _T:
        """Return what is read of an answer; repeat a call if that cannot do a thing twice."""
        sent = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if body is not None:
            sent["Content-Type"] = "application/json"
        sent.update(headers or {})
        call = urllib.request.Request(self.url + path, body, sent, method=method)
        tries = 0
        while True:
            try:
                with self._opener.open(call, timeout=self._timeout) as answer:
                    return read(answer)
            except urllib.error.HTTPError as error:
                with error:
                    failure, pause = _problem(error), _retry_after(error)
                may_repeat = error.code in (_BUSY if is_safe else _NOT_DONE)
            except (OSError, HTTPException) as error:
                failure, pause = _unreachable(error), None
                may_repeat = is_safe or _was_never_sent(error)
            tries += 1
            if not may_repeat or tries > self._retries:
                raise failure
            time.sleep(_pause(tries) if pause is None else min(pause, _LONGEST_PAUSE))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves redirects alone: the token must not go anywhere else."""

    def redirect_request(self, *given: Any) -> None:
        """Follow none; the answer becomes an error."""


def _all(answer: HTTPResponse) -> bytes:
    return answer.read()


def _save(answer: HTTPResponse, path: Path) -> None:
    with path.open("wb") as file:
        shutil.copyfileobj(answer, file)


def _has_reached(request: Json, until: str) -> bool:
    if request["state"] in _LINE and _LINE.index(request["state"]) >= _LINE.index(until):
        return True
    return request["certificate"] is not None and _LINE.index(until) <= _LINE.index("certified")


def _problem(error: urllib.error.HTTPError) -> DeskError:
    """Return the error that an answer describes."""
    try:
        found = json.loads(error.read())
        code, title = str(found["type"]).rpartition(":")[2], str(found["title"])
        detail = str(found.get("detail", ""))
    except (ValueError, LookupError, TypeError, OSError, HTTPException):
        code, title, detail = "no-problem", f"the desk answered with status {error.code}", ""
    busy = error.code == 429 or error.code >= 500
    kind = TryAgain if busy else _KINDS.get(error.code, Refused)
    return kind(error.code, code, title, detail)


def _unreachable(error: BaseException) -> DeskError:
    return TryAgain(None, "unreachable", "the desk could not be reached", str(error))


def _was_never_sent(error: BaseException) -> bool:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return isinstance(reason, ConnectionRefusedError)


def _retry_after(error: urllib.error.HTTPError) -> float | None:
    text = str(error.headers.get("Retry-After", "")) if error.headers else ""
    return float(text) if text.isascii() and text.isdigit() else None


def _pause(tries: int) -> float:
    return random.uniform(0.05, min(_LONGEST_PAUSE, 0.2 * 2.0**tries))


def _given(**values: Any) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def _part(text: str) -> str:
    """Return a text as one part of a path."""
    return quote(str(text), safe="")


def _query(filters: Json) -> str:
    kept = {name: _text(value) for name, value in _given(**filters).items()}
    return f"?{urlencode(kept, doseq=True)}" if kept else ""


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _form(data: bytes, fields: Mapping[str, str]) -> tuple[bytes, str]:
    """Return a multipart body with one CSV file, and its content type."""
    mark = uuid.uuid4().hex
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = (
        f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="requests.csv"\r\n'
        "Content-Type: text/csv\r\n\r\n"
    )
    body = b"".join([*parts, head.encode(), data, f"\r\n--{mark}--\r\n".encode()])
    return body, f"multipart/form-data; boundary={mark}"
