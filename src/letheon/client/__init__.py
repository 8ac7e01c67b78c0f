"""A dependency-free client of the erasure desk.

::

    from letheon.client import Client

    desk = Client("https://desk.example.org", token)
    request = desk.request(["c-17"], model="risk")
    desk.wait(request["id"], until="certified")

Results are plain dicts and lists, as described in ``/openapi.json``. A safe call is repeated when
the connection breaks or the desk is busy; `request` is safe, because it sends an idempotency key.
Redirects are not followed, so that the token is sent only to the desk.

::

    DeskError (LetheonError)       any error of a call, including an untrusted TLS certificate
    ├── NotAllowed                 401, 403: the token is not valid or lacks a scope
    ├── NotFound                   404: there is no such object, or it belongs to another tenant
    ├── CallRefused                400, 409, 413, 422: not valid, or not possible in this state
    └── TryAgain                   429, 5xx, no response: try again later
"""

import contextlib
import json
import shutil
import ssl
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

from letheon.client._transport import (
    CallRefused,
    DeskError,
    Json,
    NotAllowed,
    NotFound,
    Transport,
    TryAgain,
)

__all__ = ["CallRefused", "Client", "DeskError", "NotAllowed", "NotFound", "TryAgain"]

_LINE = (
    *("received", "verified", "queued", "applying", "applied", "certified", "purging", "purged"),
    "closed",
)
_SIDE = ("rejected", "cancelled")
_PAGE = 200


class Client:
    """A client of a desk; it is thread-safe.

    Parameters
    ----------
    url : str
        URL of the desk: ``https://desk.example.org``, or ``http://localhost:8311``.
    token : str
        Access token, from ``letheon token add`` or the tokens page of the desk.
    timeout : float, default=30
        Time limit for a response, in seconds.
    retries : int, default=4
        Maximum number of repetitions of a safe call.
    context : ssl.SSLContext, optional
        TLS settings, for a desk whose certificate is from a private certificate authority.
    insecure : bool, default=False
        Allow plain http to another machine, which sends the token unencrypted.

    Raises
    ------
    ValueError
        `url` is not an http or https URL, or is http to another machine without `insecure`.

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
        insecure: bool = False,
    ) -> None:
        self._desk = Transport(
            url, token, timeout=timeout, retries=retries, context=context, insecure=insecure
        )

    @property
    def url(self) -> str:
        """URL of the desk."""
        return self._desk.url

    def __repr__(self) -> str:
        """Return the URL of the desk, without the token."""
        return f"Client({self.url!r})"

    def request(
        self,
        ids: Sequence[int] | Sequence[str],
        *,
        model: str,
        key: str | None = None,
        **options: Any,
    ) -> Json:
        """File an erasure request; it is stored permanently when this method returns.

        Parameters
        ----------
        ids : sequence of int or of str
            Ids to erase.
        model : str
            Name of the model; ``*`` for every model that contains one of the ids.
        key : str, optional
            Idempotency key: repeating a call with the same key and content returns the same
            request. By default, a random key, so that automatic repetitions file only one request.
        **options
            ``tenant``, ``regime``, ``ground``, ``verified``, ``receipt``, as in the API.

        Returns
        -------
        dict
            The request; for the model ``*``, ``requests`` is a list of requests. With ``receipt``,
            each request has a ``receipt_code``, which the desk returns only once. If that response
            was lost, a new code is created, unless you passed `key`: the person may already have
            the code of an earlier call, which a new code would invalidate. If ``receipt_code`` is
            None, call `new_receipt_code`, which works until the request is applied. A token that
            can only file requests gets no receipt codes, and values such as `n_rows` are None.
        """
        body = {"model": model, "ids": list(ids), **options}
        filed = self._post_with_key("/api/v1/requests", body, key)
        if options.get("receipt") and key is None:
            for request in filed.get("requests", [filed]):
                self._complete_receipt(request)
        return filed

    def new_receipt_code(self, request_id: str) -> str:
        """Return a new receipt code for a request about one person; earlier codes become invalid.

        Raises
        ------
        CallRefused
            The request is already applied or closed, or is about several people.
        """
        return str(
            self._post_json(f"/api/v1/requests/{_quote_segment(request_id)}/receipt-code")["code"]
        )

    def bulk(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        tenant: str | None = None,
        key: str | None = None,
    ) -> Json:
        """File up to 1000 independent requests.

        Each item is a dict such as ``{"model": "risk", "ids": ["c-17"]}``, with the options of the
        API.

        In the result, ``items`` has one entry per request, in the same order.
        """
        body = {"items": [dict(item) for item in items]} | _without_none(tenant=tenant)
        return self._post_with_key("/api/v1/requests/bulk", body, key)

    def upload_csv(
        self,
        file: str | Path | bytes,
        *,
        tenant: str | None = None,
        verified: bool = False,
        key: str | None = None,
    ) -> Json:
        """File one request per line of a CSV file.

        The file has the columns model and id, and optionally key, regime and ground.
        """
        data = file if isinstance(file, bytes) else Path(file).read_bytes()
        fields = _without_none(tenant=tenant) | ({"verified": "true"} if verified else {})
        body, kind = _make_form(data, fields)
        headers = {"Content-Type": kind, "Idempotency-Key": key or str(uuid.uuid4())}
        return self._desk.call_json("POST", "/api/v1/requests/upload", body, headers)

    def requests(self, **filters: Any) -> Iterator[Json]:
        """Yield requests, fetched page by page.

        Parameters
        ----------
        **filters
            ``model``, ``tenant``, ``state`` (one or a list), ``regime``, ``overdue``,
            ``due_before``, ``search``, ``order``.
        """
        return self._iterate_pages("/api/v1/requests", filters)

    def find(self, request_id: str) -> Json:
        """Return a request with its current state."""
        return self._get_json(f"/api/v1/requests/{_quote_segment(request_id)}")

    def timeline(self, request_id: str) -> list[Json]:
        """Return the events of a request, oldest first."""
        return list(
            self._iterate_pages(
                f"/api/v1/requests/{_quote_segment(request_id)}/timeline", {}, limit=None
            )
        )

    def summary(self, **filters: Any) -> Json:
        """Return the numbers of requests by state, and by days until the deadline."""
        return self._get_json("/api/v1/summary", filters)

    def wait(
        self, request_id: str, until: str = "certified", *, timeout: float = 600, pause: float = 1.0
    ) -> Json:
        """Wait until a request has reached a state, and return the request.

        Parameters
        ----------
        request_id : str
            Id of the request.
        until : str, default="certified"
            A state on the way from ``received`` to ``closed``. A duplicate reaches ``certified``
            together with the request that erases its ids. A token that can only file requests sees
            ``received``, and ``closed`` after the deadline.
        timeout : float, default=600
            Time limit in seconds.
        pause : float, default=1.0
            Seconds between two polls.

        Raises
        ------
        CallRefused
            The request was rejected or cancelled.
        TimeoutError
            The request did not reach the state within `timeout`.
        """
        if until not in _LINE:
            raise ValueError(f"until={until!r} is not valid; expected one of {', '.join(_LINE)}")
        end = time.monotonic() + timeout
        while True:
            request = self.find(request_id)
            if _has_reached(request, until):
                return request
            if request["state"] in _SIDE:
                raise CallRefused(409, request["state"], f"the request was {request['state']}")
            if time.monotonic() + pause > end:
                raise TimeoutError(
                    f"the request is still {request['state']}, not {until}; increase timeout"
                )
            time.sleep(pause)

    def verify(self, request_id: str) -> Json:
        """Record that the identity of the requester was verified, and queue the request."""
        return self._take_action(request_id, "verify")

    def await_identity(self, request_id: str) -> Json:
        """Record that you asked for proof of identity."""
        return self._take_action(request_id, "await-identity")

    def approve(self, request_id: str) -> Json:
        """Approve a request that needs approval because of its size."""
        return self._take_action(request_id, "approve")

    def reject(self, request_id: str, ground: str) -> Json:
        """Reject a request on a legal ground."""
        return self._take_action(request_id, "reject", {"ground": ground})

    def cancel(self, request_id: str) -> Json:
        """Withdraw a request that is neither applied nor in a running batch."""
        return self._take_action(request_id, "cancel")

    def hold(self, request_id: str, ground: str, until: str) -> Json:
        """Put a request on hold on a legal ground until a day, given as YYYY-MM-DD."""
        return self._take_action(request_id, "hold", {"ground": ground, "until": until})

    def release(self, request_id: str) -> Json:
        """End the hold of a request."""
        return self._take_action(request_id, "release")

    def extend(self, request_id: str) -> Json:
        """Extend the deadline as far as the law permits. You must tell the requester why."""
        return self._take_action(request_id, "extend")

    def retry(self, request_id: str) -> Json:
        """Queue a failed request again."""
        return self._take_action(request_id, "retry")

    def tell(self, request_id: str, recipients: int) -> Json:
        """Record the number of newly notified recipients of the data."""
        return self._take_action(request_id, "tell", {"recipients": recipients})

    def answer(self, request_id: str, *, recipients: int = 0) -> Json:
        """Close a purged request after the requester was answered."""
        return self._take_action(request_id, "answer", {"recipients": recipients})

    def models(self, **filters: Any) -> list[Json]:
        """Return all models, as a list of dicts."""
        return list(self._iterate_pages("/api/v1/models", filters))

    def model(self, name: str, **filters: Any) -> Json:
        """Return the model with this name."""
        return self._get_json(f"/api/v1/models/{_quote_segment(name)}", filters)

    def history(self, model: str, **filters: Any) -> Json:
        """Return the measures of a model's versions over time."""
        return self._get_json(f"/api/v1/models/{_quote_segment(model)}/history", filters)

    def plan(self, model: str, **filters: Any) -> Json:
        """Return the next batch of a model."""
        return self._get_json(f"/api/v1/models/{_quote_segment(model)}/plan", filters)

    def what_if(self, model: str, *, wait: bool = True, **options: Any) -> Json:
        """Compare the cost and the guarantee of all methods for the next batch of a model.

        With `wait`, return the finished job; otherwise return the started job.
        """
        return self._start_job(
            f"/api/v1/models/{_quote_segment(model)}/what-if", options, wait=wait
        )

    def apply(self, model: str, *, wait: bool = True, **options: Any) -> Json:
        """Apply the queued requests of a model now; with `wait`, return the finished job."""
        return self._start_job(f"/api/v1/models/{_quote_segment(model)}/apply", options, wait=wait)

    def retrain(self, model: str, *, wait: bool = True, **options: Any) -> Json:
        """Retrain a model on the remaining rows, and apply its queued requests.

        With `wait`, return the finished job; otherwise return the started job.
        """
        return self._start_job(
            f"/api/v1/models/{_quote_segment(model)}/retrain", options, wait=wait
        )

    def job(self, job_id: str) -> Json:
        """Return the current state of a job."""
        return self._get_json(f"/api/v1/jobs/{_quote_segment(job_id)}")

    def certificates(self, **filters: Any) -> Iterator[Json]:
        """Yield summaries of certificates, fetched page by page."""
        return self._iterate_pages("/api/v1/certificates", filters)

    def certificate(self, number: int) -> bytes:
        """Return the signed envelope of a certificate."""
        path = f"/api/v1/certificates/{int(number)}/envelope"
        return self._desk.call("GET", path, HTTPResponse.read)

    def verify_certificate(self, number: int, key: str) -> Json:
        """Verify the signature of a certificate locally, and return its statement.

        This shows that the ledger signed the certificate. To check the chain, the log and the
        proofs as well, download the `bundle` and call `letheon.verifier.verify_bundle`.

        Parameters
        ----------
        number : int
            Number of the certificate, as in `certificates`.
        key : str
            The first public key of the ledger in hexadecimal digits, from a source other than the
            desk.

        Raises
        ------
        letheon.verifier.VerificationError
            The signature, the schema or the keys are not valid.
        """
        from letheon.verifier import Trust, open_envelope, require

        keys = self._get_json("/api/v1/keys")
        statements = [text.encode() for text in keys.get("statements", [])]
        opened = open_envelope(self.certificate(number), Trust.from_pinned(key, statements))
        require(opened.is_certificate, "the file is not a certificate")
        # A tenant has its own numbers; the signed number counts the certificates of all tenants.
        if self.me()["tenant"] is None:
            require(
                opened.sequence == number,
                f"the desk returned certificate {opened.sequence} instead of {number}",
            )
        else:
            own = self._get_json(f"/api/v1/certificates/{int(number)}")
            require(
                opened.id == own["id"], "the desk returned a certificate other than the listed one"
            )
        return opened.statement

    def bundle(self, path: str | Path, *, tier: Literal["public", "auditor"] = "public") -> Path:
        """Download a bundle as a zip file, and return its path; third parties can verify it."""
        target = Path(path)
        query = urlencode({"tier": tier})
        part = target.with_name(f".{target.name}.partial")
        try:
            self._desk.call(
                "GET", f"/api/v1/bundle?{query}", lambda answer: _save_response(answer, part)
            )
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return target

    def audit(self, *, wait: bool = True, **options: Any) -> Json:
        """Run an audit of the ledger and return the job.

        The options ``model``, ``levels`` and ``drill`` are described in the API.
        """
        started = self._post_json("/api/v1/audits", options)
        return (
            self._wait_for_job(f"/api/v1/audits/{_quote_segment(started['id'])}", started)
            if wait
            else started
        )

    def check_receipt(self, code: str) -> Json:
        """Return whether a certificate covers a receipt; no token is needed."""
        return self._post_json("/api/v1/receipts/check", {"code": code}, is_safe=True)

    def me(self) -> Json:
        """Return name, role, scopes and tenant of this token."""
        return self._get_json("/api/v1/me")

    def tokens(self, **filters: Any) -> Iterator[Json]:
        """Yield tokens, without their secrets."""
        return self._iterate_pages("/api/v1/tokens", filters)

    def add_token(self, name: str, role: str, **options: Any) -> Json:
        """Create a token and return it; its secret is not shown again."""
        return self._post_json("/api/v1/tokens", {"name": name, "role": role, **options})

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token."""
        self._desk.call_json("DELETE", f"/api/v1/tokens/{_quote_segment(token_id)}", is_safe=False)

    def webhooks(self, **filters: Any) -> Iterator[Json]:
        """Yield webhooks, without their secrets."""
        return self._iterate_pages("/api/v1/webhooks", filters)

    def add_webhook(self, url: str, events: Sequence[str], **options: Any) -> Json:
        """Create a webhook and return it; its secret is not shown again."""
        return self._post_json("/api/v1/webhooks", {"url": url, "events": list(events), **options})

    def remove_webhook(self, webhook_id: str) -> None:
        """Delete a webhook."""
        self._desk.call_json(
            "DELETE", f"/api/v1/webhooks/{_quote_segment(webhook_id)}", is_safe=False
        )

    def _complete_receipt(self, request: Json) -> None:
        """Add a new receipt code to a filed request that has none; ignore errors of the desk."""
        if request.get("receipt_code") is None:
            with contextlib.suppress(DeskError):
                request["receipt_code"] = self.new_receipt_code(request["id"])

    def _take_action(self, request_id: str, action: str, body: Json | None = None) -> Json:
        return self._post_json(f"/api/v1/requests/{_quote_segment(request_id)}/{action}", body)

    def _post_with_key(self, path: str, body: Json, key: str | None) -> Json:
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._desk.call_json("POST", path, json.dumps(body).encode(), headers)

    def _start_job(self, path: str, options: Json, *, wait: bool) -> Json:
        started = self._post_json(path + _make_query(options))
        return (
            self._wait_for_job(f"/api/v1/jobs/{_quote_segment(started['id'])}", started)
            if wait
            else started
        )

    def _post_json(self, path: str, body: Json | None = None, *, is_safe: bool = False) -> Json:
        data = None if body is None else json.dumps(body).encode()
        return self._desk.call_json("POST", path, data, is_safe=is_safe)

    def _wait_for_job(self, path: str, started: Json) -> Json:
        """Poll a job until it is finished and return it; raise `CallRefused` if it failed."""
        job, pause = started, 0.2
        while not job["is_over"]:
            time.sleep(pause)
            pause = min(1.5 * pause, 5.0)
            job = self._get_json(path)
        problem = job.get("problem")
        if problem:
            raise CallRefused(None, problem["code"], "the job failed", problem["words"])
        return job

    def _iterate_pages(self, path: str, filters: Json, limit: int | None = _PAGE) -> Iterator[Json]:
        after: Json = _without_none(limit=limit)
        while True:
            page = self._get_json(path, {**filters, **after})
            yield from page["items"]
            if page["next"] is None:
                return
            after = _without_none(limit=limit, after=page["next"])

    def _get_json(self, path: str, query: Json | None = None) -> Json:
        return self._desk.call_json("GET", path + _make_query(query or {}))


def _save_response(answer: HTTPResponse, path: Path) -> None:
    with path.open("wb") as file:
        shutil.copyfileobj(answer, file)


def _has_reached(request: Json, until: str) -> bool:
    if request["state"] in _LINE and _LINE.index(request["state"]) >= _LINE.index(until):
        return True
    return request["certificate"] is not None and _LINE.index(until) <= _LINE.index("certified")


def _without_none(**values: Any) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def _quote_segment(text: str) -> str:
    """Return a text, percent-encoded as one segment of a URL path."""
    return quote(str(text), safe="")


def _make_query(filters: Json) -> str:
    kept = _without_none(**filters)
    kept |= {name: str(value).lower() for name, value in kept.items() if isinstance(value, bool)}
    return f"?{urlencode(kept, doseq=True)}" if kept else ""


def _make_form(data: bytes, fields: Mapping[str, str]) -> tuple[bytes, str]:
    """Return a multipart body with one CSV file and form fields, and its content type."""
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
