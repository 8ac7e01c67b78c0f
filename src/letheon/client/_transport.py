"""HTTP calls to a desk: retries and errors."""

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

__all__ = ["CallRefused", "DeskError", "Json", "NotAllowed", "NotFound", "Transport", "TryAgain"]

Json = dict[str, Any]
_T = TypeVar("_T")

_LONGEST_PAUSE = 30.0
_BUSY = frozenset({429, 502, 503, 504})
_NOT_DONE = frozenset({429, 503})


class DeskError(LetheonError):
    """Error of a call to the desk.

    Attributes
    ----------
    status : int or None
        HTTP status; None if there was no response.
    code : str
        Code for programs, such as ``unknown-request``.
    title, detail : str
        What is wrong, and what to do.

    Examples
    --------
    >>> from letheon.client import Client, DeskError
    >>> try:
    ...     Client("http://127.0.0.1:1", "a token", timeout=1, retries=0).models()
    ... except DeskError as error:
    ...     type(error).__name__
    'TryAgain'
    """

    def __init__(self, status: int | None, code: str, title: str, detail: str = "") -> None:
        super().__init__(f"{title}: {detail}" if detail else title)
        self.status = status
        self.code = code
        self.title = title
        self.detail = detail


class NotAllowed(DeskError):  # noqa: N818
    """Error: the token is not valid or lacks a scope.

    Examples
    --------
    >>> from letheon.client import DeskError, NotAllowed
    >>> error = NotAllowed(403, "a-code", "A title", "what to do")
    >>> isinstance(error, DeskError), error.status, str(error)
    (True, 403, 'A title: what to do')
    """


class NotFound(DeskError):  # noqa: N818
    """Error: there is no such object, or it belongs to another tenant.

    Examples
    --------
    >>> from letheon.client import DeskError, NotFound
    >>> error = NotFound(404, "a-code", "A title", "what to do")
    >>> isinstance(error, DeskError), error.status, str(error)
    (True, 404, 'A title: what to do')
    """


class CallRefused(DeskError):  # noqa: N818
    """Error: the call is not valid, or not possible in the current state of the object."""


class TryAgain(DeskError):  # noqa: N818
    """Error: the desk is busy or cannot be reached; try again later.

    Examples
    --------
    >>> from letheon.client import DeskError, TryAgain
    >>> error = TryAgain(429, "a-code", "A title", "what to do")
    >>> isinstance(error, DeskError), error.status, str(error)
    (True, 429, 'A title: what to do')
    """


_KINDS: dict[int, type[DeskError]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound}


class Transport:
    """HTTP connection to a desk with a token; the parameters are those of `Client`."""

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
            raise ValueError(
                f"url={url!r} is not valid: expected an http or https URL without a "
                f"password, for example https://desk.example.org"
            )
        is_here = parts.scheme == "http" and _is_loopback(parts.hostname)
        if parts.scheme == "http" and not is_here and not insecure:
            raise ValueError(
                f"url={url!r} would send the token unencrypted; use https, or insecure=True in a "
                "trusted network"
            )
        self.url = url.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._retries = retries
        secure = urllib.request.HTTPSHandler(context=context or ssl.create_default_context())
        # Calls to this machine do not use the proxy of the environment.
        proxies = urllib.request.ProxyHandler({} if is_here else None)
        self._opener = urllib.request.build_opener(secure, proxies, _NoRedirect())

    def call_json(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        is_safe: bool = True,
    ) -> Json:
        """Send a call and return the JSON of the response; an empty dict if it is empty."""
        data = self.call(method, path, HTTPResponse.read, body, headers, is_safe=is_safe)
        content: Json = json.loads(data) if data else {}
        return content

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
        """Send a call and return ``read(response)``.

        A call that fails is repeated if it was not processed, or if `is_safe` is true.
        """
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
                    failure, pause = _parse_problem(error), _retry_after(error)
                may_repeat = error.code in (_BUSY if is_safe else _NOT_DONE)
            except (OSError, HTTPException) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                failure, pause = self._connection_error(reason), None
                was_never_sent = isinstance(reason, ConnectionRefusedError)
                may_repeat = isinstance(failure, TryAgain) and (is_safe or was_never_sent)
            tries += 1
            if not may_repeat or tries > self._retries:
                raise failure
            time.sleep(_draw_pause(tries) if pause is None else min(pause, _LONGEST_PAUSE))

    def _connection_error(self, reason: BaseException | str) -> DeskError:
        """Return the error for a call that got no response."""
        if isinstance(reason, ssl.SSLCertVerificationError):
            advice = "for your own authority, use context=ssl.create_default_context(cafile=...)"
            words = f"{self.url}: {reason.verify_message}; {advice}"
            return DeskError(
                None, "not-trusted", "the TLS certificate of the desk is not trusted", words
            )
        words = f"{self.url}: {reason}"
        return TryAgain(None, "unreachable", "the desk could not be reached", words)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that does not follow redirects, so that no other server receives the token."""

    def redirect_request(self, *args: Any) -> None:
        """Return None, so that a redirect is reported as an error."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parse_problem(error: urllib.error.HTTPError) -> DeskError:
    """Return the error that a response describes."""
    try:
        problem = json.loads(error.read())
        code, title = str(problem["type"]).rpartition(":")[2], str(problem["title"])
        detail = str(problem.get("detail", ""))
    except (ValueError, LookupError, TypeError, OSError, HTTPException):
        code, title, detail = "no-problem", f"the desk returned HTTP status {error.code}", ""
    busy = error.code == 429 or error.code >= 500
    kind = TryAgain if busy else _KINDS.get(error.code, CallRefused)
    return kind(error.code, code, title, detail)


def _retry_after(error: urllib.error.HTTPError) -> float | None:
    text = str(error.headers.get("Retry-After", "")) if error.headers else ""
    return float(text) if text.isascii() and text.isdigit() else None


def _draw_pause(tries: int) -> float:
    return random.uniform(0.05, min(_LONGEST_PAUSE, 0.2 * 2.0**tries))
