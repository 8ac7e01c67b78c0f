"""Calls to a desk over HTTP: what is repeated, what an answer that is no means."""

import ipaddress
import json
import random
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.parse import urlsplit

from letheon.exceptions import LetheonError

__all__ = ["DeskError", "Json", "NotAllowed", "NotFound", "Refused", "Transport", "TryAgain"]

Json = dict[str, Any]
_T = TypeVar("_T")

_LONGEST_PAUSE = 30.0
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


class Transport:
    """Carries calls to one desk, with the token; the parameters are those of `Client`."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout: float,
        retries: int,
        context: ssl.SSLContext | None,
        insecure: bool,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError(f"{url!r} is no address of a desk; expected https://desk.example.org")
        is_here = parts.scheme == "http" and _is_loopback(parts.hostname)
        if parts.scheme == "http" and not is_here and not insecure:
            raise ValueError(
                f"{url!r} would send the token in clear; use https, or insecure=True if nobody "
                "can listen on the way"
            )
        self.url = url.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._retries = retries
        secure = urllib.request.HTTPSHandler(context=context or ssl.create_default_context())
        # A proxy of the environment would see what is meant for this machine only.
        proxies = urllib.request.ProxyHandler({} if is_here else None)
        self._opener = urllib.request.build_opener(secure, proxies, _NoRedirect())

    def json(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        is_safe: bool = True,
    ) -> Json:
        """Return the JSON of an answer; an empty one is an empty dict."""
        data = self.call(method, path, HTTPResponse.read, body, headers, is_safe=is_safe)
        found: Json = json.loads(data) if data else {}
        return found

    def call(
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
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                failure, pause = self._silence(reason), None
                was_never_sent = isinstance(reason, ConnectionRefusedError)
                may_repeat = isinstance(failure, TryAgain) and (is_safe or was_never_sent)
            tries += 1
            if not may_repeat or tries > self._retries:
                raise failure
            time.sleep(_pause(tries) if pause is None else min(pause, _LONGEST_PAUSE))

    def _silence(self, reason: BaseException | str) -> DeskError:
        """Return the error of a call that got no answer."""
        if isinstance(reason, ssl.SSLCertVerificationError):
            advice = "for an authority of your own, context=ssl.create_default_context(cafile=...)"
            words = f"{self.url}: {reason.verify_message}; {advice}"
            return DeskError(None, "not-trusted", "the desk's certificate is not trusted", words)
        words = f"{self.url}: {reason}"
        return TryAgain(None, "unreachable", "the desk could not be reached", words)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves redirects alone: the token must not go anywhere else."""

    def redirect_request(self, *given: Any) -> None:
        """Follow none; the answer becomes an error."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


def _retry_after(error: urllib.error.HTTPError) -> float | None:
    text = str(error.headers.get("Retry-After", "")) if error.headers else ""
    return float(text) if text.isascii() and text.isdigit() else None


def _pause(tries: int) -> float:
    return random.uniform(0.05, min(_LONGEST_PAUSE, 0.2 * 2.0**tries))
