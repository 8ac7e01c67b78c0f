"""Where the desk may send: tricky addresses, rebinding, and what the list permits."""

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.service.addresses import (
    AddressRefusedError,
    AllowedHost,
    Target,
    parse_hosts,
    parse_url,
    resolve_target,
)

LIST = parse_hosts(
    [
        "hooks.example.org",
        "*.partner.example",
        "api.example.org:8443",
        "http://plain.example.org",
        "xn--bcher-kva.example",
        "93.184.216.34",
        "[2606:2800:220:1::1]",
        {"host": "http://127.0.0.1:9000", "internal": True},
        {"host": "inside.example.org", "internal": True},
    ]
)

GOOD = {
    "https://hooks.example.org": ("hooks.example.org", 443, "/"),
    "https://hooks.example.org/": ("hooks.example.org", 443, "/"),
    "https://HOOKS.Example.ORG/in?a=b": ("hooks.example.org", 443, "/in?a=b"),
    "https://hooks.example.org:443/x": ("hooks.example.org", 443, "/x"),
    "https://hooks.example.org?x=1": ("hooks.example.org", 443, "/?x=1"),
    "https://a.partner.example/": ("a.partner.example", 443, "/"),
    "https://a.b.partner.example/": ("a.b.partner.example", 443, "/"),
    "https://api.example.org:8443/v1/%41": ("api.example.org", 8443, "/v1/%41"),
    "http://plain.example.org/": ("plain.example.org", 80, "/"),
    "http://127.0.0.1:9000/in": ("127.0.0.1", 9000, "/in"),
    "https://xn--bcher-kva.example/": ("xn--bcher-kva.example", 443, "/"),
    "https://93.184.216.34/": ("93.184.216.34", 443, "/"),
    "https://[2606:2800:220:1:0::1]/": ("2606:2800:220:1::1", 443, "/"),
}

BAD = [
    "",
    "hooks.example.org",
    "//hooks.example.org/",
    "http://hooks.example.org/",
    "ftp://hooks.example.org/",
    "file:///etc/passwd",
    "gopher://hooks.example.org/",
    "javascript:alert(1)",
    "HTTPS://hooks.example.org/",
    "https:/hooks.example.org/",
    "https:///hooks.example.org/",
    "https://hooks.example.org.evil.example/",
    "https://evil.example/hooks.example.org",
    "https://evil.example/?hooks.example.org",
    "https://evil.example#hooks.example.org",
    "https://hooks.example.org#frag",
    "https://hooks.example.org@evil.example/",
    "https://user@hooks.example.org/",
    "https://user:secret@hooks.example.org/",
    "https://evil.example\\@hooks.example.org/",
    "https://evil.example\\.hooks.example.org/",
    "https://hooks.example.org\\evil.example/",
    "https://hooks.example.org:80/",
    "https://hooks.example.org:8443/",
    "https://hooks.example.org:22/",
    "https://hooks.example.org:0/",
    "https://hooks.example.org:/",
    "https://hooks.example.org:99999/",
    "https://hooks.example.org:0443/",
    "https://hooks.example.org:443:443/",
    "https://hooks.example.org:+443/",
    "https://hooks.example.org:٤٤٣/",
    "https://hooks.example.org./",
    "https://.hooks.example.org/",
    "https://hooks..example.org/",
    "https://-hooks.example.org/",
    "https://hooks.example.org%2f@evil.example/",
    "https://hooks%2eexample%2eorg/",
    "https://hooks。example。org/",
    "https://hooks.exаmple.org/",
    "https://ｈooks.example.org/",
    "https://hooks.example.org\u2024evil.example/",
    "https://xn--hooks-.partner.example/",
    "https://xn--e1awd7f.partner.example/",
    "https://partner.example/",
    "https://notpartner.example/",
    "https://localhost/",
    "https://127.0.0.1/",
    "http://127.0.0.1/",
    "http://127.0.0.1:9001/",
    "http://127.1:9000/",
    "http://0x7f.0.0.1:9000/",
    "http://0x7f000001:9000/",
    "http://2130706433:9000/",
    "http://017700000001:9000/",
    "http://0177.0.0.1:9000/",
    "http://127.0.0.01:9000/",
    "http://127.000.000.001:9000/",
    "http://[::ffff:127.0.0.1]:9000/",
    "http://[::1]:9000/",
    "http://[::]:9000/",
    "http://[127.0.0.1]:9000/",
    "http://[fe80::1%25eth0]:9000/",
    "https://[::ffff:93.184.216.34]/",
    "https://169.254.169.254/latest/meta-data/",
    "https://metadata.google.internal/",
    "https://hooks.example.org/ ",
    " https://hooks.example.org/",
    "https://hooks.example.org/a b",
    "https://hooks.example.org/\r\nX-Evil: 1",
    "https://hooks.example.org/\n",
    "https://hooks.example.org/\t",
    "https://hooks.example.org/\x00",
    "https://hooks.example.org/%",
    "https://hooks.example.org/%zz",
    "https://hooks.example.org/é",
    "https://hooks\t.example.org/",
    "https://hooks_example.org/",
    "https://" + "a" * 64 + ".partner.example/",
    "https://" + "a." * 126 + "partner.example/",
    "https://hooks.example.org/" + "a" * 2048,
]

NEVER = [
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.1.1",
    "100.100.100.200",
    "168.63.129.16",
    "224.0.0.1",
    "239.255.255.255",
    "255.255.255.255",
    "240.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "192.88.99.1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "fd00:ec2::254",
    "::ffff:127.0.0.1",
    "::ffff:93.184.216.34",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "3fff::1",
    "100::1",
    "not an address",
]
INTERNAL = [
    *("127.0.0.1", "127.8.8.8", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("100.64.0.1", "::1", "fd12:3456::1", "fc00::1"),
]
PUBLIC = ["93.184.216.34", "8.8.8.8", "172.32.0.1", "2606:2800:220:1::1"]

OUTSIDE = Target(AllowedHost("https", "hooks.example.org", 443), "hooks.example.org", "/")
INSIDE = OUTSIDE._replace(entry=OUTSIDE.entry._replace(is_internal=True))


def test_the_table_is_long_enough() -> None:
    assert len(set(BAD)) >= 60
    assert not set(BAD) & set(GOOD)


@pytest.mark.parametrize("url", GOOD)
def test_an_address_on_the_list_is_read_into_its_parts(url: str) -> None:
    target = parse_url(url, LIST)
    assert (target.host, target.entry.port, target.path) == GOOD[url]


@pytest.mark.parametrize("url", BAD)
def test_a_tricky_address_is_refused(url: str) -> None:
    with pytest.raises(AddressRefusedError) as refused:
        parse_url(url, LIST)
    assert "evil" not in str(refused.value)


def test_an_empty_list_says_how_to_fill_it() -> None:
    with pytest.raises(AddressRefusedError, match=r"webhook_hosts = \["):
        parse_url("https://hooks.example.org/", ())


@pytest.mark.parametrize(
    "entry",
    [
        *("", "*", "*.org", "*.", "*.*.example.org", "hooks.example.org/x", "ftp://a.example.org"),
        *("user@hooks.example.org", "0x7f.1", "hooks.example.org:70000", "*.127.0.0.1", "a b"),
        {"host": "hooks.example.org", "internal": "yes"},
        {"host": "hooks.example.org", "port": 1},
        {"internal": True},
        {"host": 7},
    ],
)
def test_a_careless_entry_of_the_list_is_refused(entry: object) -> None:
    with pytest.raises(ValueError, match="webhook_hosts"):
        parse_hosts([entry])  # type: ignore[list-item]


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_called(address: str) -> None:
    for target in (OUTSIDE, INSIDE):
        with pytest.raises(AddressRefusedError):
            resolve_target(target, lambda host, port: [address])


@pytest.mark.parametrize(
    "address", ["2001:1::1", "2001:3::1", "2001:20::1", "2002:5db8:d822::1", "192.88.99.1"]
)
def test_relays_are_not_called_whatever_python_says_of_them(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (ipaddress.IPv4Address, ipaddress.IPv6Address):
        monkeypatch.setattr(kind, "is_global", True)
    with pytest.raises(AddressRefusedError):
        resolve_target(OUTSIDE, lambda host, port: [address])


@pytest.mark.parametrize("address", INTERNAL)
def test_private_addresses_need_the_operators_word(address: str) -> None:
    assert resolve_target(INSIDE, lambda host, port: [address]) == (address,)
    with pytest.raises(AddressRefusedError, match="internal = true"):
        resolve_target(OUTSIDE, lambda host, port: [address])


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_called(address: str) -> None:
    assert resolve_target(OUTSIDE, lambda host, port: [address]) == (address,)


@pytest.mark.parametrize("address", [*INTERNAL, *NEVER])
def test_one_bad_address_among_good_ones_refuses_all(address: str) -> None:
    with pytest.raises(AddressRefusedError):
        resolve_target(OUTSIDE, lambda host, port: ["93.184.216.34", address])


def test_a_name_without_an_address_is_no_refusal() -> None:
    with pytest.raises(OSError, match="no address"):
        resolve_target(OUTSIDE, lambda host, port: [])


def test_the_systems_resolver_is_asked_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 443))] * 2
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: answer)
    assert resolve_target(OUTSIDE) == ("8.8.8.8",)


@given(st.ip_addresses(v=4))
def test_of_ipv4_only_what_registries_call_global_is_public(address: ipaddress.IPv4Address) -> None:
    try:
        resolve_target(OUTSIDE, lambda host, port: [str(address)])
    except AddressRefusedError:
        return
    assert address.is_global
    assert not address.is_multicast


@given(st.text(max_size=60))
def test_no_text_is_read_as_another_host(text: str) -> None:
    """Whatever is read, the standard library reads the same host, and it is on the list."""
    from urllib.parse import urlsplit

    for url in (text, f"https://{text}", f"https://hooks.example.org{text}"):
        try:
            target = parse_url(url, LIST)
        except AddressRefusedError:
            continue
        assert urlsplit(url).hostname == target.host
        assert any(
            entry.covers(target.entry.scheme, target.host, target.entry.port) for entry in LIST
        )


def test_host_header_names_odd_ports_and_brackets() -> None:
    assert parse_url("https://hooks.example.org/", LIST).authority == "hooks.example.org"
    assert parse_url("https://api.example.org:8443/", LIST).authority == "api.example.org:8443"
    six = parse_url("https://[2606:2800:220:1::1]/", LIST)
    assert six.authority == "[2606:2800:220:1::1]"


def test_below_means_below() -> None:
    entry = AllowedHost("https", "example.org", 443, is_suffix=True)
    assert entry.covers("https", "a.example.org", 443)
    assert not entry.covers("https", "example.org", 443)
    assert not entry.covers("https", "aexample.org", 443)
