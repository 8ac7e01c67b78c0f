"""How a message is sent: no redirects, no proxies, no second look-up, no endless answers."""

import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from letheon.service import webhooks
from letheon.service.addresses import parse_hosts
from letheon.service.webhooks import send_message
from tests.service.receivers import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def _post(receiver: Receiver, url: str | None = None, **given: Any) -> webhooks.WebhookResult:
    return send_message(
        url or receiver.url, b"{}", {}, allowed=parse_hosts([receiver.entry]), **given
    )


def test_redirects_are_not_followed(receiver: Receiver) -> None:
    with receiving() as inside:

        def redirect(handler: Any, call: Any) -> None:
            handler.send_response(307)
            handler.send_header("Location", inside.url)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        receiver.answer = redirect
        assert _post(receiver) == webhooks.WebhookResult("answered", 307)
        assert inside.calls == []


def test_proxies_of_the_environment_are_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert _post(receiver) == webhooks.WebhookResult("delivered", 204, delivered=True)
        assert proxy.calls == []


def test_a_peer_that_drips_is_cut_off(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_IN_ALL_SECONDS", 0.2)
    is_over = threading.Event()

    def drip(handler: Any, call: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        number = 0
        while not is_over.wait(0.05):
            number += 1
            handler.wfile.write(f"X-{number}: 1\r\n".encode())

    receiver.answer = drip
    answer = _post(receiver)
    is_over.set()
    assert answer == webhooks.WebhookResult("unreachable")


def test_a_large_answer_is_not_read_to_its_end(receiver: Receiver) -> None:
    sent: list[int] = []

    def flood(handler: Any, call: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        sent.extend(handler.wfile.write(b"x" * 65536) for _ in range(1024))

    receiver.answer = flood
    assert _post(receiver) == webhooks.WebhookResult("delivered", 200, delivered=True)
    assert sum(sent) < 64 * 2**20


def test_a_name_is_asked_once_and_its_checked_address_called(receiver: Receiver) -> None:
    asked = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    entry = {"host": f"http://hooks.test.example:{receiver.port}", "internal": True}
    url = f"http://hooks.test.example:{receiver.port}/in"
    assert (
        send_message(url, b"{}", {}, allowed=parse_hosts([entry]), lookup=rebinding).status == 204
    )
    assert asked == ["hooks.test.example"]
    assert receiver.calls[0].headers["host"] == f"hooks.test.example:{receiver.port}"


def test_a_name_that_leads_inside_is_refused(receiver: Receiver) -> None:
    allowed = parse_hosts([f"http://hooks.test.example:{receiver.port}"])
    url = f"http://hooks.test.example:{receiver.port}/in"
    answer = send_message(url, b"{}", {}, allowed=allowed, lookup=lambda host, port: ["127.0.0.1"])
    assert answer == webhooks.WebhookResult("refused")
    assert receiver.calls == []


def _certified(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """A server's context with a certificate for a name, and the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    whose = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(whose, whose, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    pem = made.public_bytes(serialization.Encoding.PEM)
    (folder / "cert.pem").write_bytes(pem)
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "cert.pem"


def test_https_checks_the_name_and_the_issuer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, certificate = _certified(tmp_path, "hooks.test.example")
    names: list[str | None] = []
    context.sni_callback = lambda sock, name, given: names.append(name)
    with receiving(context=context) as receiver:
        hosts = [f"{name}.test.example:{receiver.port}" for name in ("hooks", "wrong")]
        allowed = parse_hosts([{"host": host, "internal": True} for host in hosts])

        def post(host: str) -> webhooks.WebhookResult:
            local = ["127.0.0.1"]
            url = f"https://{host}/"
            return send_message(url, b"{}", {}, allowed=allowed, lookup=lambda host, port: local)

        assert post(hosts[0]) == webhooks.WebhookResult(
            "unreachable"
        )  # the certificate is not trusted
        trusting = ssl.create_default_context
        monkeypatch.setattr(ssl, "create_default_context", lambda: trusting(cafile=certificate))
        assert post(hosts[0]) == webhooks.WebhookResult("delivered", 204, delivered=True)
        assert post(hosts[1]) == webhooks.WebhookResult("unreachable")
        assert names[1] == "hooks.test.example"
        assert len(receiver.calls) == 1
