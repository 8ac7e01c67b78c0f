"""Where webhooks may go: hosts that the operator allows, and IP addresses that are safe.

A webhook is an address that a user types into the desk and that the desk then calls, from inside
the operator's network. So three checks can refuse it: is the text an address of one plain form;
does the operator's list name the host; do all addresses that the name has now lie where the list
permits. The connection goes to one of the addresses that were checked: the name is not resolved
again, so that it cannot have moved in between.
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


def network_of(host: str) -> str:
    """Return what counts as one address: of IPv6 the network of a house."""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.IPv6Network((host.partition("%")[0], 64), strict=False))
    except ValueError:
        return host


def _networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(map(ipaddress.ip_network, text.split()))


# What `internal` allows: this machine, private networks, carriers' networks.
_INTERNAL = _networks(
    "127.0.0.0/8 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 ::1/128 fc00::/7"
)
# Metadata services of clouds, which give credentials away, in ranges that look harmless; and
# relays, assignments of protocols and documentation: which of them `is_global` lets pass depends on
# the Python.
_NEVER = _networks(
    "100.100.100.200 168.63.129.16 192.0.0.0/24 192.88.99.0/24 fd00:ec2::254 fd20:ce::254 "
    "2001::/23 2002::/16 3fff::/20"
)


class AddressRefusedError(ValueError):
    """The desk does not send there; the text says why and what to do."""


class AllowedHost(NamedTuple):
    """One entry of the operator's list.

    Attributes
    ----------
    scheme : {"https", "http"}
        How it is called; "https" unless the entry says otherwise.
    host : str
        A name or an IP address; with `is_suffix`, the name above all that are meant.
    port : int
        The one port.
    is_suffix : bool
        Whether the entry began with ``*.``: names below `host`, not itself.
    is_internal : bool
        Whether it may lie in a private network or on this machine.
    """

    scheme: str
    host: str
    port: int
    is_suffix: bool = False
    is_internal: bool = False

    def covers(self, scheme: str, host: str, port: int) -> bool:
        """Whether this is one of the addresses that the entry means."""
        if (scheme, port) != (self.scheme, self.port):
            return False
        if not self.is_suffix:
            return host == self.host
        # Letters of other alphabets look like these; a name with them must be listed itself.
        inside = host.removesuffix(f".{self.host}")
        return inside != host and not any(label.startswith("xn--") for label in inside.split("."))


class Target(NamedTuple):
    """An address that an entry of the list permits."""

    entry: AllowedHost
    host: str
    path: str

    @property
    def authority(self) -> str:
        """Value of the header ``Host``."""
        host, port = f"[{self.host}]" if ":" in self.host else self.host, self.entry.port
        return host if port == _PORTS[self.entry.scheme] else f"{host}:{port}"


def parse_hosts(entries: Iterable[str | Mapping[str, object]]) -> tuple[AllowedHost, ...]:
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
    (AllowedHost(scheme='https', host='example.org', port=443, is_suffix=True, is_internal=False),)
    """
    return tuple(map(_parse_host, entries))


def _parse_host(entry: str | Mapping[str, object]) -> AllowedHost:
    table = {"host": entry} if isinstance(entry, str) else entry
    host, internal = table.get("host"), table.get("internal", False)
    match = _ENTRY.fullmatch(host) if isinstance(host, str) else None
    if match is None or not isinstance(internal, bool) or set(table) - {"host", "internal"}:
        raise ValueError(
            f"webhook_hosts: {entry!r} is no host; expected 'hooks.example.org', '*.example.org', "
            "'hooks.example.org:8443', or { host = 'http://127.0.0.1:9000', internal = true }"
        )
    scheme, is_suffix = match[1] or "https", match[2] is not None
    try:
        name, port = _normalize_host(match[3]), _parse_port(match[4], scheme)
    except AddressRefusedError as error:
        raise ValueError(f"webhook_hosts: {entry!r}: {error}") from None
    if is_suffix and ("." not in name or _to_ip(name) is not None):
        raise ValueError(f"webhook_hosts: {entry!r} would allow far too much; name a host")
    return AllowedHost(scheme, name, port, is_suffix, internal)


def parse_url(url: str, allowed: Sequence[AllowedHost]) -> Target:
    """Return the parts of an address that the list permits.

    Only one plain form is read: ``https://host[:port][/path][?query]`` in ASCII. Everything that
    two programs could read differently is refused: names before an ``@``, backslashes, blanks,
    fragments, numbers for hosts that are not four decimal ones, dots at the end.

    Raises
    ------
    AddressRefusedError
        It has another form, or the list does not name it.
    """
    match = _URL.fullmatch(url) if len(url) <= LONGEST else None
    if match is None:
        raise AddressRefusedError(
            "this is no plain web address; expected https://host/path in ASCII, without user "
            f"names, fragments or blanks, at most {LONGEST} characters"
        )
    scheme, host, port = match[1], _normalize_host(match[2]), _parse_port(match[3], match[1])
    entry = next((entry for entry in allowed if entry.covers(scheme, host, port)), None)
    if entry is not None:
        return Target(entry, host, (match[4] or "/") + (match[5] or ""))
    if allowed:
        raise AddressRefusedError(
            "the operator's list of hosts does not name this one with this scheme and port; see "
            "webhook_hosts in service.toml"
        )
    raise AddressRefusedError(
        "this desk sends to no host; the operator lists those it may send to in service.toml: "
        'webhook_hosts = ["hooks.example.org"]'
    )


def resolve(target: Target, lookup: Resolver | None = None) -> tuple[str, ...]:
    """Return the IP addresses of a target, after a check of each.

    Raises
    ------
    AddressRefusedError
        One of them is not public. Those of private networks and of this machine are accepted of
        a target that is listed as internal; those of clouds' metadata services, link-local,
        multicast and reserved ones, and IPv4 inside IPv6, never are.
    OSError
        The name cannot be resolved.
    """
    literal = _to_ip(target.host)
    texts = [str(literal)] if literal else (lookup or _lookup)(target.host, target.entry.port)
    if not texts:
        raise OSError(f"no address for {target.host}")
    if not all(_is_safe(text, is_internal=target.entry.is_internal) for text in texts):
        raise AddressRefusedError(
            "the host's address is not a public one; where that is meant, the operator lists "
            "the host with internal = true"
        )
    return tuple(dict.fromkeys(texts))


def _lookup(host: str, port: int) -> list[str]:
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
        raise AddressRefusedError(f"there is no port {port}")
    return port


def _normalize_host(text: str) -> str:
    """Return the one spelling of a host, or refuse it."""
    host = text.lower()
    if host.startswith("["):
        address = _to_ip(host[1:-1])
        if address is None or address.version != 6:
            raise AddressRefusedError("what stands in brackets is no IPv6 address")
        return str(address)
    labels = host.split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise AddressRefusedError("the host is no name of letters, digits, '-' and '.'")
    # A last part that begins with a digit is read as a number by some: 2130706433, 0x7f.1, 127.1.
    if labels[-1][0].isdigit() and str(_to_ip(host)) != host:
        raise AddressRefusedError("the host looks like an address; write four decimal numbers")
    return host


def _to_ip(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
