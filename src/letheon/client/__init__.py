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

    DeskError (LetheonError)       the desk said no, or nothing, or its certificate is not trusted
    ├── NotAllowed                 401, 403: no valid token, or one that may not do that
    ├── NotFound                   404: nothing of that name, or somebody else's
    ├── Refused                    400, 409, 413, 422: not like that, or not now
    └── TryAgain                   429, 5xx, no answer: the same call may go well later
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
    DeskError,
    Json,
    NotAllowed,
    NotFound,
    Refused,
    Transport,
    TryAgain,
)

__all__ = ["Client", "DeskError", "NotAllowed", "NotFound", "Refused", "TryAgain"]

_LINE = (
    *("received", "verified", "queued", "applying", "applied", "certified", "purging", "purged"),
    "closed",
)
_SIDE = ("rejected", "cancelled")
_PAGE = 200


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
    insecure : bool, default=False
        Whether the token may go over plain http to another machine.

    Raises
    ------
    ValueError
        The address is no http or https one, or http to another machine without `insecure`.

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
        """Where the desk is."""
        return self._desk.url

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

        Returns
        -------
        dict
            The request; for the model ``*``, ``requests`` is a list of them. With ``receipt`` each
            has a ``receipt_code``, which the desk shows once. If the answer that had it was lost
            on the way, a new one is fetched, unless you gave the `key`: a code of an earlier call
            may be in somebody's hands, and a new one would end it. None: no code could be had;
            `new_receipt_code` makes one as long as the request is not applied. A token that only
            files gets no codes, and sees no counts, batches or certificates: `n_rows` is None.
        """
        body = {"model": model, "ids": list(ids), **options}
        filed = self._keyed("/api/v1/requests", body, key)
        if options.get("receipt") and key is None:
            for request in filed.get("requests", [filed]):
                self._complete(request)
        return filed

    def new_receipt_code(self, request_id: str) -> str:
        """Return a new receipt code of a request about one person; earlier ones open nothing.

        Raises
        ------
        Refused
            The request was applied or ended already, or names several people.
        """
        return str(self._post(f"/api/v1/requests/{_part(request_id)}/receipt-code")["code"])

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
        return self._desk.json("POST", "/api/v1/requests/upload", body, headers)

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
            request is certified when that one is. A token that only files sees ``received``, and
            ``closed`` after the last day.
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
        path = f"/api/v1/certificates/{int(number)}/envelope"
        return self._desk.call("GET", path, HTTPResponse.read)

    def verify_certificate(self, number: int, key: str) -> Json:
        """Return what a certificate claims, after its signature was checked here.

        It shows who signed it. That it has its place in the chain and in the log, and that the
        proofs hold, is shown by the bundle: `bundle`, then `letheon.verifier.verify_bundle`.

        Parameters
        ----------
        number : int
            Which one, as the desk numbers it for this token.
        key : str
            The first public key of the ledger in hexadecimal digits, from another source.

        Raises
        ------
        letheon.verifier.VerificationError
            The signature, the schema or the keys do not hold.
        """
        from letheon.verifier import UNLEARNING, Trust, open_envelope, require

        keys = self._get("/api/v1/keys")
        statements = [text.encode() for text in keys.get("statements", [])]
        opened = open_envelope(self.certificate(number), Trust.from_pinned(key, statements))
        require(opened.statement["predicateType"] == UNLEARNING, "this is no certificate")
        # A tenant's certificates are counted apart, and the signed number counts all.
        if self.me()["tenant"] is None:
            require(opened.sequence == number, f"this is certificate {opened.sequence}")
        else:
            own = self._get(f"/api/v1/certificates/{int(number)}")
            require(opened.id == own["id"], "this is another certificate than the desk lists")
        return opened.statement

    def bundle(self, path: str | Path, *, tier: Literal["public", "auditor"] = "public") -> Path:
        """Write what others may verify into a zip file, and return its path."""
        target = Path(path)
        query = urlencode({"tier": tier})
        part = target.with_name(f".{target.name}.partial")
        try:
            self._desk.call("GET", f"/api/v1/bundle?{query}", lambda answer: _save(answer, part))
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
        self._desk.json("DELETE", f"/api/v1/tokens/{_part(token_id)}", is_safe=False)

    def webhooks(self, **filters: Any) -> Iterator[Json]:
        """Yield webhooks, without their secrets."""
        return self._pages("/api/v1/webhooks", filters)

    def add_webhook(self, url: str, events: Sequence[str], **options: Any) -> Json:
        """Make a webhook; its secret is in the answer and nowhere else."""
        return self._post("/api/v1/webhooks", {"url": url, "events": list(events), **options})

    def remove_webhook(self, webhook_id: str) -> None:
        """Remove a webhook."""
        self._desk.json("DELETE", f"/api/v1/webhooks/{_part(webhook_id)}", is_safe=False)

    def _complete(self, request: Json) -> None:
        """Fetch the receipt code that a request lacks; without one it is filed all the same."""
        if request.get("receipt_code") is None:
            with contextlib.suppress(DeskError):
                request["receipt_code"] = self.new_receipt_code(request["id"])

    def _act(self, request_id: str, action: str, body: Json | None = None) -> Json:
        return self._post(f"/api/v1/requests/{_part(request_id)}/{action}", body)

    def _keyed(self, path: str, body: Json, key: str | None) -> Json:
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._desk.json("POST", path, json.dumps(body).encode(), headers)

    def _job(self, path: str, options: Json, *, wait: bool) -> Json:
        started = self._post(path + _query(options))
        return self._over(f"/api/v1/jobs/{_part(started['id'])}", started) if wait else started

    def _post(self, path: str, body: Json | None = None, *, is_safe: bool = False) -> Json:
        data = None if body is None else json.dumps(body).encode()
        return self._desk.json("POST", path, data, is_safe=is_safe)

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
        return self._desk.json("GET", path + _query(query or {}))


def _save(answer: HTTPResponse, path: Path) -> None:
    with path.open("wb") as file:
        shutil.copyfileobj(answer, file)


def _has_reached(request: Json, until: str) -> bool:
    if request["state"] in _LINE and _LINE.index(request["state"]) >= _LINE.index(until):
        return True
    return request["certificate"] is not None and _LINE.index(until) <= _LINE.index("certified")


def _given(**values: Any) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def _part(text: str) -> str:
    """Return a text as one part of a path."""
    return quote(str(text), safe="")


def _query(filters: Json) -> str:
    kept = _given(**filters)
    kept |= {name: str(one).lower() for name, one in kept.items() if isinstance(one, bool)}
    return f"?{urlencode(kept, doseq=True)}" if kept else ""


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
