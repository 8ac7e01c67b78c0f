"""Where the desk may send: a list of hosts that the operator allows, and addresses that are safe.

A webhook is an address that somebody types into the desk and that the desk then calls, from inside
the operator's network. So three questions are asked, and each can refuse: is the text an address
of one plain form; does the operator's list name the host; do all addresses that the name has now
lie where the list permits. The connection goes to one of the addresses that were looked at: the
name is not asked again, so that it cannot have moved in between.
"""

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["AddressRefusedError", "Allowed", "Target", "parse_hosts", "resolve", "parse_url"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Sequence[str]]

LONGEST = 2048
_PORTS = {"https": 443, "http": 80}
_HOST = r"\[[0-9a-fA-F:.]+\]|[0-9A-Za-z.-]+"
_PATH = r"(?:[0-9A-Za-z._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"
_URL = re.compile(rf"(https?)://({_HOST})(?::([1-9][0-9]{{0,4}}))?(/{_PATH})?(\?{_PATH})?", re.A)
_LABEL = re.compile(r"[0-9a-z](?:[0-9a-z-]{0,61}[0-9a-z])?")
_ENTRY = re.compile(rf"(?:(https?)://)?(\*\.)?({_HOST})(?::([1-9][0-9]{{0,4}}))?", re.A)
_NETWORK = ipaddress.ip_network
# What `internal` opens: this machine, private networks, carriers' networks.
_INTERNAL = tuple(
    map(
        _NETWORK,
        (
            *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
            *("::1/128", "fc00::/7"),
        ),
    )
)
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
# Registries count these as public: IPv4 addresses in disguise, relays, examples of documents.
_NOT_PUBLIC = tuple(
    map(_NETWORK, ("2001::/23", "2002::/16", "3fff::/20", "192.88.99.0/24", "192.0.0.0/24"))
)
# Services of clouds that give credentials away; the last two are in ranges that look harmless.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16"),
    )
)


class AddressRefusedError(ValueError):
    """The desk does not send there; the text says why and what to do."""


class Target(NamedTuple):
    """An address in its parts, and what the list says about it."""

    scheme: str
    host: str
    port: int
    path: str
    is_internal: bool

    @property
    def authority(self) -> str:
        """Value of the header ``Host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True)
class Allowed:
    """One entry of the operator's list.

    Attributes
    ----------
    scheme : {"https", "http"}
        How it is called; "https" unless the entry says otherwise.
    host : str
        A name or an IP address; with `below`, the name above all that are meant.
    port : int
        The one port.
    below : bool
        Whether the entry began with ``*.``: names below `host`, not itself.
    is_internal : bool
        Whether it may lie in a private network or on this machine.
    """

    scheme: str
    host: str
    port: int
    below: bool = False
    is_internal: bool = False

    def covers(self, scheme: str, host: str, port: int) -> bool:
        """Whether this is one of the addresses that the entry means."""
        if (scheme, port) != (self.scheme, self.port):
            return False
        if not self.below:
            return host == self.host
        # Letters of other alphabets look like these; a name with them must be listed itself.
        inside = host.removesuffix(f".{self.host}")
        return inside != host and not any(label.startswith("xn--") for label in inside.split("."))


def parse_hosts(entries: Iterable[str | Mapping[str, object]]) -> tuple[Allowed, ...]:
    """Return the operator's list of hosts, read strictly.

    Parameters
    ----------
    entries : iterable of str or mapping
        ``hooks.example.org``, ``*.example.org``, ``hooks.example.org:8443`` or
        ``http://hooks.example.org``; or such a `host` in a mapping with `internal`, which is true
        for a host in a private network or on this machine.

    Raises
    ------
    ValueError
        An entry has another form.

    Examples
    --------
    >>> parse_hosts(["*.example.org"])
    (Allowed(scheme='https', host='example.org', port=443, below=True, is_internal=False),)
    """
    return tuple(map(_entry, entries))


def _entry(given: str | Mapping[str, object]) -> Allowed:
    table = {"host": given} if isinstance(given, str) else given
    host, internal = table.get("host"), table.get("internal", False)
    found = _ENTRY.fullmatch(host) if isinstance(host, str) else None
    if found is None or not isinstance(internal, bool) or set(table) - {"host", "internal"}:
        raise ValueError(
            f"webhook_hosts: {given!r} is no host; expected 'hooks.example.org', '*.example.org', "
            "'hooks.example.org:8443', or { host = 'http://127.0.0.1:9000', internal = true }"
        )
    scheme, below = found[1] or "https", found[2] is not None
    try:
        name, port = _host(found[3]), _port(found[4], scheme)
    except AddressRefusedError as error:
        raise ValueError(f"webhook_hosts: {given!r}: {error}") from None
    if below and ("." not in name or _as_ip(name) is not None):
        raise ValueError(f"webhook_hosts: {given!r} would allow far too much; name a host")
    return Allowed(scheme, name, port, below, internal)


def parse_url(url: str, allowed: Sequence[Allowed]) -> Target:
    """Return the parts of an address that the list permits.

    Only one plain form is read: ``https://host[:port][/path][?query]`` in ASCII. Everything that
    two programs could read differently is refused: names before an ``@``, backslashes, blanks,
    fragments, numbers for hosts that are not four decimal ones, dots at the end.

    Raises
    ------
    AddressRefusedError
        It has another form, or the list does not name it.
    """
    found = _URL.fullmatch(url) if len(url) <= LONGEST else None
    if found is None:
        raise AddressRefusedError(
            "this is no plain web address; expected https://host/path in ASCII, without user "
            f"names, fragments or blanks, at most {LONGEST} characters"
        )
    scheme, host, port = found[1], _host(found[2]), _port(found[3], found[1])
    entry = next((entry for entry in allowed if entry.covers(scheme, host, port)), None)
    if entry is None:
        raise AddressRefusedError(_not_listed(allowed))
    return Target(scheme, host, port, (found[4] or "/") + (found[5] or ""), entry.is_internal)


def _not_listed(allowed: Sequence[Allowed]) -> str:
    if not allowed:
        return (
            "this desk sends to no host; the operator lists those it may send to in service.toml: "
            'webhook_hosts = ["hooks.example.org"]'
        )
    return (
        "the operator's list of hosts does not name this one with this scheme and port; see "
        "webhook_hosts in service.toml"
    )


def resolve(target: Target, resolve: Resolver | None = None) -> tuple[str, ...]:
    """Return the IP addresses of a target, after a look at each.

    Raises
    ------
    AddressRefusedError
        One of them is not public. Those of private networks and of this machine are accepted of
        a target that is listed as internal; those of clouds' metadata services, link-local,
        multicast and reserved ones, and IPv4 inside IPv6, never are.
    OSError
        The name cannot be resolved.
    """
    literal = _as_ip(target.host)
    texts = [str(literal)] if literal else (resolve or _resolve)(target.host, target.port)
    found = tuple(dict.fromkeys(texts))
    if not found:
        raise OSError(f"no address for {target.host}")
    for text in found:
        if not _is_safe(text, is_internal=target.is_internal):
            raise AddressRefusedError(
                "the host's address is not a public one; where that is meant, the operator lists "
                "the host with internal = true"
            )
    return found


def _resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def _is_safe(text: str, *, is_internal: bool) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # with a zone, such as fe80::1%eth0
        return False
    if address in _METADATA:
        return False
    if any(address in network for network in _INTERNAL):
        return is_internal
    return _is_public(address)


def _is_public(address: Address) -> bool:
    if address.version == 6 and address not in _PUBLIC_6:
        return False
    is_odd = address.is_multicast or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not is_odd


def _port(text: str | None, scheme: str) -> int:
    port = int(text) if text else _PORTS[scheme]
    if port > 65535:
        raise AddressRefusedError(f"there is no port {port}")
    return port


def _host(text: str) -> str:
    """Return the one spelling of a host, or refuse it."""
    host = text.lower()
    if host.startswith("["):
        address = _as_ip(host[1:-1])
        if address is None or address.version != 6:
            raise AddressRefusedError("what stands in brackets is no IPv6 address")
        return str(address)
    labels = host.split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise AddressRefusedError("the host is no name of letters, digits, '-' and '.'")
    # A last part that begins with a digit is read as a number by some: 2130706433, 0x7f.1, 127.1.
    if labels[-1][0].isdigit() and str(_as_ip(host)) != host:
        raise AddressRefusedError("the host looks like an address; write four decimal numbers")
    return host


def _as_ip(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
