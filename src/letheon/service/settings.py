"""The settings of a desk, read from the file ``service.toml``; all are optional."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from letheon.exceptions import LedgerError
from letheon.ledger.settings import require_known
from letheon.service.addresses import parse_hosts

FILE = "service.toml"

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """The settings of a desk.

    Parameters
    ----------
    public_url : str or None
        Public URL of the desk, for example ``https://desk.example.org``; required behind a proxy.
    hosts : tuple of str
        Additional host names under which the desk may be called.
    trusted_proxies : tuple of str
        Addresses of proxies whose header ``X-Forwarded-For`` is trusted.
    session_hours, idle_minutes : int
        Maximum duration of a browser session in hours, and without activity in minutes.
    token_days : int
        Default lifetime of a token in days.
    rate_per_token, rate_login, rate_failed, rate_receipt : str
        Rate limits, for example "100/minute", for calls with the same token, and for logins, calls
        with an invalid token and receipt checks from the same address.
    max_body_bytes, max_upload_bytes, max_model_bytes : int
        Maximum sizes of an ordinary body, of a CSV upload, and of an uploaded model with its rows.
    model_seconds : int
        Time limit for reading and retraining an uploaded model, in seconds.
    allow_partial_sandbox : bool
        Whether to accept uploaded models even if the kernel of the server cannot isolate them from
        its files or network. `letheon doctor` shows what the kernel can isolate.
    max_connections, connections_per_address : int
        Maximum numbers of open connections, in total and per address. Trusted proxies have no limit
        per address.
    header_seconds, body_seconds, response_seconds, idle_seconds : int
        Time limits for receiving the head of a request, for receiving its body, for sending the
        response, and for an idle connection. Body and response get one more second for every
        10,000 bytes.
    webhook_hosts : tuple of str or mapping
        Hosts that webhooks may use, for example ``hooks.example.org`` or ``*.example.org``. Add a
        port if needed, and ``http://`` for plain HTTP. Write ``{host = ..., internal = true}`` for
        a host in a private network. If the list is empty, webhooks are disabled.

    Examples
    --------
    >>> from letheon.service import ServiceSettings
    >>> ServiceSettings(public_url="https://desk.example.org", session_hours=4).idle_minutes
    60
    """

    public_url: str | None = None
    hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    session_hours: int = 12
    idle_minutes: int = 60
    token_days: int = 90
    rate_per_token: str = "6000/minute"
    rate_login: str = "10/minute"
    rate_failed: str = "30/minute"
    rate_receipt: str = "30/minute"
    max_body_bytes: int = _MIB
    max_upload_bytes: int = 8 * _MIB
    max_model_bytes: int = 256 * _MIB
    model_seconds: int = 300
    allow_partial_sandbox: bool = False
    max_connections: int = 1000
    connections_per_address: int = 256
    header_seconds: int = 10
    body_seconds: int = 60
    response_seconds: int = 60
    idle_seconds: int = 15
    webhook_hosts: tuple[str | Mapping[str, object], ...] = ()

    def __post_init__(self) -> None:
        """Raise a ValueError if a setting is not valid."""
        for entry in fields(self):
            _require_kind(entry.name, getattr(self, entry.name), entry.default)
        _require_rates(self)
        if self.connections_per_address > self.max_connections:
            raise ValueError(
                f"connections_per_address={self.connections_per_address} must be at most "
                f"max_connections={self.max_connections}"
            )
        parse_hosts(self.webhook_hosts)
        if self.public_url is not None and not self.public_url.startswith(("http://", "https://")):
            raise ValueError(f"public_url={self.public_url!r} must begin with https:// or http://")

    @property
    def is_https(self) -> bool:
        """Whether the public URL uses HTTPS."""
        return self.public_url is not None and self.public_url.startswith("https://")

    @staticmethod
    def read(folder: Path) -> "ServiceSettings":
        """Read ``service.toml`` in the folder of a ledger; return the defaults if it is missing.

        Raises
        ------
        LedgerError
            A setting is not valid.
        """
        path = folder / FILE
        try:
            values = tomllib.loads(path.read_text("utf-8"))
            return _make_settings(values)
        except FileNotFoundError:
            return ServiceSettings()
        except (ValueError, TypeError) as error:
            raise LedgerError(f"{path}: {error}") from error


def _make_settings(table: Mapping[str, Any]) -> ServiceSettings:
    require_known(ServiceSettings, table)
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
    }
    return ServiceSettings(**values)


_KINDS = {
    bool: "true or false",
    int: "a whole number of at least 1",
    str: "a string",
    tuple: "a list",
}


def _require_kind(name: str, value: Any, default: Any) -> None:
    kind = type(default)
    is_right = type(value) is kind and (kind is not int or value >= 1)
    if kind in _KINDS and not is_right:
        raise ValueError(f"{name}={value!r} must be {_KINDS[kind]}")
    if name in ("hosts", "trusted_proxies") and not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name}={value!r} must be a list of strings")


def _require_rates(settings: ServiceSettings) -> None:
    from limits import parse

    for name in ("rate_per_token", "rate_login", "rate_failed", "rate_receipt"):
        try:
            parse(getattr(settings, name))
        except ValueError as error:
            raise ValueError(
                f"{name}={getattr(settings, name)!r} is not a valid rate; use a value such as "
                "100/minute"
            ) from error
