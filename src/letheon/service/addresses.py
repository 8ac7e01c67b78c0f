"""Allowed destinations of webhooks: hosts that the operator lists, and safe IP addresses.

A webhook is a URL that a user enters and that the desk calls from inside the operator's network.
Three checks protect that network: the URL must have one plain form, the operator's list must
contain the host, and all IP addresses of the host must be in ranges that the list permits. The
connection goes to one of the checked addresses. The name is not resolved again, so it cannot change
after the check.
"""

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Sequence[str]]

LONGEST = 2048
_PORTS = {"https": 443, "http": 80}
_HOST = r"\[[0-9a-fA-F:.]+\]|[0-9A-Za-z.-]+"
_PATH = r"(?:[0-9A-Za-z._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"
_URL = re.compile(rf"(https?)://({_HOST})(?::([1-9][0-9]{{0,4}}))?(/{_PATH})?(\?{_PATH})?", re.A)
_LABEL = re.compile(r"[0-9a-z](?:[0-9a-z-]{0,61}[0-9a-z])?")
_ENTRY = re.compile(rf"(?:(https?)://)?(\*\.)?({_HOST})(?::([1-9][0-9]{{0,4}}))?", re.A)


def address_group(host: str) -> str:
    """Return the key under which a limit per address counts a client.

    It is the address itself for IPv4, and the /64 network for IPv6.
    """
    if ":" not in host:
        return host
    try:
        return str(ipaddress.IPv6Network((host.partition("%")[0], 64), strict=False))
    except ValueError:
        return host


def _parse_networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(map(ipaddress.ip_network, text.split()))


# Ranges that `internal` allows: this machine, private networks, carrier-grade NAT.
_INTERNAL = _parse_networks(
    "127.0.0.0/8 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 ::1/128 fc00::/7"
)
# Cloud metadata services, which hand out credentials; and relays, protocol assignments and
# documentation ranges, for which `is_global` depends on the Python version.
_NEVER = _parse_networks(
    "100.100.100.200 168.63.129.16 192.0.0.0/24 192.88.99.0/24 fd00:ec2::254 fd20:ce::254 "
    "2001::/23 2002::/16 3fff::/20"
)


class AddressRefusedError(ValueError):
    """The error for a webhook address that is not allowed; its text says why and what to do."""


class AllowedHost(NamedTuple):
    """One entry of the operator's list of webhook hosts.

    Attributes
    ----------
    scheme : {"https", "http"}
        Scheme of the URL; "https" unless the entry says otherwise.
    host : str
        A name or an IP address; with `is_suffix`, the parent domain.
    port : int
        The only allowed port.
    is_suffix : bool
        Whether the entry began with ``*.``. It then allows subdomains of `host`, but not `host`
        itself.
    is_internal : bool
        Whether the host may be in a private network or on this machine.
    """

    scheme: str
    host: str
    port: int
    is_suffix: bool = False
    is_internal: bool = False

    def covers(self, scheme: str, host: str, port: int) -> bool:
        """Return whether the entry allows this scheme, host and port."""
        if (scheme, port) != (self.scheme, self.port):
            return False
        if not self.is_suffix:
            return host == self.host
        # Letters of other alphabets look like Latin ones; such a name must be listed in full.
        inside = host.removesuffix(f".{self.host}")
        return inside != host and not any(label.startswith("xn--") for label in inside.split("."))


class Target(NamedTuple):
    """The host and path of a URL, and the entry of the operator's list that permits it."""

    entry: AllowedHost
    host: str
    path: str

    @property
    def authority(self) -> str:
        """Value of the ``Host`` header."""
        host, port = f"[{self.host}]" if ":" in self.host else self.host, self.entry.port
        return host if port == _PORTS[self.entry.scheme] else f"{host}:{port}"


def parse_hosts(entries: Iterable[str | Mapping[str, object]]) -> tuple[AllowedHost, ...]:
    """Parse the operator's list of webhook hosts.

    Parameters
    ----------
    entries : iterable of str or mapping
        Hosts such as ``hooks.example.org``, ``*.example.org``, ``hooks.example.org:8443`` or
        ``http://hooks.example.org``. A mapping has this text as `host`, and `internal`, which is
        true for a host in a private network or on this machine.

    Raises
    ------
    ValueError
        An entry has a different form.

    Examples
    --------
    >>> parse_hosts(["*.example.org"])
    (AllowedHost(scheme='https', host='example.org', port=443, is_suffix=True, is_internal=False),)
    """
    return tuple(map(_parse_host, entries))


def _parse_host(entry: str | Mapping[str, object]) -> AllowedHost:
    table = {"host": entry} if isinstance(entry, str) else entry
    host, internal = table.get("host"), table.get("internal", False)
    match = _ENTRY.fullmatch(host) if isinstance(host, str) else None
    if match is None or not isinstance(internal, bool) or set(table) - {"host", "internal"}:
        raise ValueError(
            f"webhook_hosts: {entry!r} is not a valid host; expected 'hooks.example.org', "
            "'*.example.org', "
            "'hooks.example.org:8443', or { host = 'http://127.0.0.1:9000', internal = true }"
        )
    scheme, is_suffix = match[1] or "https", match[2] is not None
    try:
        name, port = _normalize_host(match[3]), _parse_port(match[4], scheme)
    except AddressRefusedError as error:
        raise ValueError(f"webhook_hosts: {entry!r}: {error}") from None
    if is_suffix and ("." not in name or _to_ip(name) is not None):
        raise ValueError(
            f"webhook_hosts: {entry!r} is not allowed; after '*.' expected a domain with at least "
            "two labels, such as '*.example.org', and not an IP address"
        )
    return AllowedHost(scheme, name, port, is_suffix, internal)


def parse_url(url: str, allowed: Sequence[AllowedHost]) -> Target:
    """Parse a URL, and return its parts if the operator's list permits it.

    Only one plain form is accepted: ``https://host[:port][/path][?query]`` in ASCII; ``http`` if
    the list says so. Everything that two programs could parse differently is rejected: user names,
    backslashes, blanks, fragments, IPv4 addresses that are not four decimal numbers, and trailing
    dots.

    Raises
    ------
    AddressRefusedError
        The URL has a different form, or the list does not contain its host.
    """
    match = _URL.fullmatch(url) if len(url) <= LONGEST else None
    if match is None:
        raise AddressRefusedError(
            "the URL is not valid: expected https://host/path in ASCII, without user name, "
            f"fragment or blanks, with at most {LONGEST} characters"
        )
    scheme, host, port = match[1], _normalize_host(match[2]), _parse_port(match[3], match[1])
    entry = next((entry for entry in allowed if entry.covers(scheme, host, port)), None)
    if entry is not None:
        return Target(entry, host, (match[4] or "/") + (match[5] or ""))
    if allowed:
        raise AddressRefusedError(
            "this host, scheme and port are not in the operator's list; see webhook_hosts in "
            "service.toml"
        )
    raise AddressRefusedError(
        "webhooks are disabled; ask the operator to list the allowed hosts in service.toml: "
        'webhook_hosts = ["hooks.example.org"]'
    )


def resolve_target(target: Target, lookup: Resolver | None = None) -> tuple[str, ...]:
    """Return the IP addresses of a target after checking each of them.

    Raises
    ------
    AddressRefusedError
        An address is not public. Private and loopback addresses are accepted for a target that is
        listed as internal. Addresses of cloud metadata services, link-local, multicast and reserved
        addresses, and IPv4 inside IPv6 are never accepted.
    OSError
        The name cannot be resolved.
    """
    literal = _to_ip(target.host)
    texts = [str(literal)] if literal else (lookup or _resolve_name)(target.host, target.entry.port)
    if not texts:
        raise OSError(f"no address for {target.host}")
    if not all(_is_safe(text, is_internal=target.entry.is_internal) for text in texts):
        raise AddressRefusedError(
            "the host does not have a public address; for an internal host, ask the operator to "
            "add internal = true to its entry in webhook_hosts"
        )
    return tuple(dict.fromkeys(texts))


def _resolve_name(host: str, port: int) -> list[str]:
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in answers]


def _is_safe(text: str, *, is_internal: bool) -> bool:
    address = _to_ip(text)
    if address is None or "%" in text or any(address in network for network in _NEVER):
        return False
    if any(address in network for network in _INTERNAL):
        return is_internal
    if isinstance(address, ipaddress.IPv6Address):
        is_ipv4 = address.ipv4_mapped or address.sixtofour or address.teredo
        if is_ipv4 or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _parse_port(text: str | None, scheme: str) -> int:
    port = int(text) if text else _PORTS[scheme]
    if port > 65535:
        raise AddressRefusedError(f"port {port} is not valid: expected a number up to 65535")
    return port


def _normalize_host(text: str) -> str:
    """Return a host in lower case, or an IPv6 address in its short form without brackets.

    Raises AddressRefusedError if the host is not valid.
    """
    host = text.lower()
    if host.startswith("["):
        address = _to_ip(host[1:-1])
        if address is None or address.version != 6:
            raise AddressRefusedError("the host in brackets is not a valid IPv6 address")
        return str(address)
    labels = host.split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise AddressRefusedError("the host is not valid: expected letters, digits, '-' and '.'")
    # Some programs read a last part that begins with a digit as a number: 2130706433, 0x7f.1,
    # 127.1.
    if labels[-1][0].isdigit() and str(_to_ip(host)) != host:
        raise AddressRefusedError(
            "the host looks like an IP address, but is not four decimal numbers such as 192.0.2.1"
        )
    return host


def _to_ip(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
