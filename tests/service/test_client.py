"""The client, against the real application under a real server."""

import contextlib
import http.server
import json
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from letheon import client as client_module
from letheon.client import CallRefused, Client, DeskError, NotAllowed, NotFound, TryAgain
from letheon.ledger.db.tokens import PREFIX
from letheon.service import Binding
from letheon.verifier import VerificationError
from tests.service.desks import Desk, make_desk, person
from tests.service.test_sending import _certified as certified

SOURCES = sorted(Path(client_module.__file__).parent.glob("*.py"))


@contextlib.contextmanager
def served(desk: Desk) -> Iterator[str]:
    """The desk under uvicorn, in a thread of this process."""
    with Binding(port=0).listen() as bound:
        config = uvicorn.Config(desk.app, log_config=None, access_log=False, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    made = make_desk(tmp_path_factory.mktemp("desk"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def url(desk: Desk) -> Iterator[str]:
    with served(desk) as served_result:
        yield served_result


@pytest.fixture
def admin(desk: Desk, url: str) -> Client:
    return Client(url, desk.tokens["admin"].text)


def test_it_needs_nothing_but_the_standard_library() -> None:
    text = "\n".join(path.read_text("utf-8") for path in SOURCES)
    names = re.findall(r"^\s*(?:from|import) (\w+(?:\.\w+)*)", text, re.MULTILINE)
    ours = {name for name in names if name.startswith("letheon")}
    private = "letheon.client._transport"
    assert ours == {"letheon.client", private, "letheon.exceptions", "letheon.verifier"}
    others = {name.partition(".")[0] for name in names} - {"letheon"}
    assert others <= sys.stdlib_module_names


def test_importing_it_brings_in_nothing_heavy() -> None:
    code = (
        "import sys, letheon.client; print([m for m in ('numpy', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_story_of_a_request(desk: Desk, admin: Client) -> None:
    filed = admin.request([person(1)], model="risk")
    assert filed["state"] == "received"
    assert admin.verify(filed["id"])["state"] == "queued"
    with pytest.raises(TimeoutError, match="queued"):
        admin.wait(filed["id"], timeout=0)
    desk.work()
    request = admin.wait(filed["id"], until="certified", timeout=5)
    assert request["certificate"] is not None
    assert admin.timeline(filed["id"])[0]["code"] == "received"


def test_the_same_key_files_one_request(admin: Client) -> None:
    first = admin.request([person(2)], model="risk", key="mine-1")
    again = admin.request([person(2)], model="risk", key="mine-1")
    other = admin.request([person(2)], model="risk")
    assert first["id"] == again["id"] != other["id"]
    with pytest.raises(CallRefused) as refused:
        admin.request([person(3)], model="risk", key="mine-1")
    assert (refused.value.status, refused.value.code) == (422, "key-used")


def test_lists_come_in_parts(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    filed = {admin.request([person(4)], model="risk")["id"] for _ in range(5)}
    monkeypatch.setattr(client_module, "_PAGE", 2)
    every = [request["id"] for request in admin.requests(model="risk")]
    assert filed <= set(every)
    assert len(every) == len(set(every))
    states = {request["state"] for request in admin.requests(state=["received", "cancelled"])}
    assert states <= {"received", "cancelled"}
    assert list(admin.requests(model="risk", overdue=True)) == []


def test_bulk_says_what_became_of_each(admin: Client) -> None:
    items = [{"model": "risk", "ids": [person(5)]}, {"model": "none", "ids": [person(5)]}]
    bulk_result = admin.bulk(items, key="bulk-1")
    assert (bulk_result["n_done"], bulk_result["n_refused"]) == (1, 1)
    again = admin.bulk(items, key="bulk-1")
    assert again["items"][0]["request"]["id"] == bulk_result["items"][0]["request"]["id"]


def test_csv_files_are_uploaded(admin: Client, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(f"model,id\nrisk,{person(6)}\nrisk,{person(7)}\n", encoding="utf-8")
    upload_result = admin.upload_csv(path, verified=True)
    assert upload_result["n_done"] == 2
    assert {item["request"]["state"] for item in upload_result["items"]} == {"queued"}


@pytest.mark.parametrize("action", ["approve", "release", "retry"])
def test_actions_at_the_wrong_time_are_refused(admin: Client, action: str) -> None:
    request = admin.request([person(8)], model="risk")["id"]
    with pytest.raises(CallRefused) as refused:
        getattr(admin, action)(request)
    assert (refused.value.status, refused.value.code) == (409, "wrong-state")


def test_actions_reach_the_desk(admin: Client) -> None:
    request = admin.request([person(8)], model="risk")
    assert admin.await_identity(request["id"])["id"] == request["id"]
    assert admin.extend(request["id"])["due_on"] > request["due_on"]
    assert admin.find(request["id"])["state"] == "received"


def test_requests_are_held_released_rejected_and_cancelled(admin: Client) -> None:
    first = admin.request([person(9)], model="risk", verified=True)["id"]
    held = admin.hold(first, "gdpr.art17.3.e", "2027-02-01")
    assert held["state"] == "on_hold"
    assert admin.release(first)["state"] == "queued"
    assert admin.cancel(first)["state"] == "cancelled"
    second = admin.request([person(9)], model="risk")["id"]
    assert admin.reject(second, "gdpr.art17.3.e")["state"] == "rejected"
    for request in (first, second):
        with pytest.raises(CallRefused, match="the request was"):
            admin.wait(request)


def test_errors_have_kinds(desk: Desk, url: str, admin: Client) -> None:
    with pytest.raises(NotFound) as missing:
        admin.find("0" * 32)
    assert missing.value.code == "unknown-request"
    with pytest.raises(NotAllowed) as wrong:
        Client(url, PREFIX + "A" * 43).me()
    assert wrong.value.status == 401
    with pytest.raises(NotAllowed) as narrow:
        Client(url, desk.tokens["narrow"].text).summary()
    assert narrow.value.status == 403
    with pytest.raises(CallRefused) as invalid:
        admin.request([], model="risk")
    assert invalid.value.status == 422
    assert issubclass(TryAgain, DeskError)


def test_tokens_are_made_and_revoked(url: str, admin: Client) -> None:
    made = admin.add_token("reader", "auditor", days=1)
    assert Client(url, made["token"]).me()["role"] == "auditor"
    assert made["id"] in {token["id"] for token in admin.tokens()}
    admin.revoke_token(made["id"])
    with pytest.raises(NotAllowed):
        Client(url, made["token"]).me()


def test_webhooks_that_are_not_allowed_are_refused(admin: Client) -> None:
    with pytest.raises(CallRefused, match="webhook_hosts"):
        admin.add_webhook("https://hooks.example.org/", ["received"])
    assert list(admin.webhooks()) == []
    with pytest.raises(NotFound):
        admin.remove_webhook("0" * 16)


def test_models_certificates_and_bundle(desk: Desk, admin: Client, tmp_path: Path) -> None:
    admin.request([person(10)], model="risk", verified=True)
    desk.work()
    assert "risk" in {model["name"] for model in admin.models()}
    number = max(certificate["sequence"] for certificate in admin.certificates())
    key = desk.ledger.public_key
    claims = admin.verify_certificate(number, key)
    assert claims["predicate"]["ledger"]["sequence"] == number
    with pytest.raises(VerificationError):
        admin.verify_certificate(number, "00" * 32)
    path = admin.bundle(tmp_path / "bundle.zip")
    assert path.read_bytes()[:2] == b"PK"
    assert [item.name for item in tmp_path.iterdir()] == ["bundle.zip"]


def test_a_plan_is_shown(admin: Client) -> None:
    assert admin.plan("risk")["model"] == "risk"


def test_a_new_code_takes_the_place_of_the_first(desk: Desk, admin: Client) -> None:
    filed = admin.request([person(11)], model="risk", verified=True, receipt=True)
    code = admin.new_receipt_code(filed["id"])
    desk.work()
    assert admin.check_receipt(code)["covered"] is True
    assert admin.check_receipt(filed["receipt_code"])["covered"] is False
    with pytest.raises(CallRefused):
        admin.new_receipt_code(filed["id"])


def test_a_receipt_that_is_none_is_said_so(admin: Client) -> None:
    receipt: Any
    try:
        receipt = admin.check_receipt("lethe-nothing")
    except CallRefused as refused:
        receipt = refused.status
    assert receipt in (404, 422) or receipt["covered"] is False


@pytest.mark.parametrize(
    "address", ["desk.example.org", "ftp://desk", "https://u:p@desk", "http://"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not valid: expected an http or https URL"):
        Client(address, "token")


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(Client("https://desk.example.org", "lth_secret"))


class Scripted(http.server.BaseHTTPRequestHandler):
    """Does what the test wants: each call takes the next mood."""

    moods: list[Callable[["Scripted"], None]]
    seen: list[tuple[str, str, str | None]]

    def _any(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.seen.append((self.command, self.path, self.headers.get("Idempotency-Key")))
        mood = self.moods.pop(0) if self.moods else Scripted.fine
        mood(self)

    do_GET = do_POST = do_DELETE = _any

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fine(self) -> None:
        self.answer(200, {"id": "a", "state": "received"})

    def busy(self) -> None:
        self.answer(503, {"type": "urn:letheon:problem:busy", "title": "busy"}, Retry_After="0")

    def stop_short(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"{")

    def hang_up(self) -> None:
        self.connection.close()

    def log_message(self, *given: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def moody(
    *moods: Callable[[Scripted], None], context: ssl.SSLContext | None = None
) -> Iterator[tuple[Client, type[Scripted]]]:
    class ScriptedHandler(Scripted):
        pass

    class ScriptedServer(http.server.ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Hanging up is what some moods do."""

    ScriptedHandler.moods, ScriptedHandler.seen = list(moods), []
    server = ScriptedServer(("127.0.0.1", 0), ScriptedHandler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield Client(f"http://127.0.0.1:{server.server_address[1]}", "token"), ScriptedHandler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_request_is_repeated_with_its_key_until_it_is_filed() -> None:
    with moody(Scripted.hang_up, Scripted.busy, Scripted.stop_short) as (
        client,
        server,
    ):
        assert client.request(["a"], model="risk")["id"] == "a"
    assert len(server.seen) == 4
    assert len({key for _, _, key in server.seen}) == 1


def says(status: int, body: Any) -> Callable[[Scripted], None]:
    return lambda item: item.answer(status, body)


FILED_BEFORE = says(200, {"id": "a", "state": "received", "receipt_code": None})
NEW_CODE = says(201, {"code": "lethe-new"})
TOO_LATE = says(409, {"type": "urn:letheon:problem:wrong-state", "title": "applied"})


def test_a_code_that_was_lost_on_the_way_is_made_anew() -> None:
    with moody(Scripted.stop_short, FILED_BEFORE, NEW_CODE) as (client, server):
        assert client.request(["a"], model="risk", receipt=True)["receipt_code"] == "lethe-new"
    assert server.seen[-1][:2] == ("POST", "/api/v1/requests/a/receipt-code")


def test_codes_of_all_models_are_made_anew_where_they_are_lost() -> None:
    both = [{"id": "a", "receipt_code": None}, {"id": "b", "receipt_code": "lethe-b"}]
    with moody(says(200, {"requests": both}), NEW_CODE) as (client, server):
        filed = client.request(["a"], model="*", receipt=True)["requests"]
    assert [request["receipt_code"] for request in filed] == ["lethe-new", "lethe-b"]
    assert len(server.seen) == 2


@pytest.mark.parametrize("mood", [TOO_LATE, Scripted.hang_up], ids=["refused", "no answer"])
def test_a_request_is_filed_even_if_no_code_can_be_had(
    mood: Callable[[Scripted], None],
) -> None:
    with moody(FILED_BEFORE, mood) as (client, server):
        filed = client.request(["a"], model="risk", receipt=True)
    assert (filed["id"], filed["receipt_code"], len(server.seen)) == ("a", None, 2)


def test_a_repeat_with_a_key_does_not_end_the_code_of_the_first_call() -> None:
    with moody(FILED_BEFORE) as (client, server):
        again = client.request(["a"], model="risk", receipt=True, key="mine")
    assert again["receipt_code"] is None
    assert len(server.seen) == 1


def test_no_code_is_fetched_without_receipt() -> None:
    with moody(FILED_BEFORE) as (client, server):
        client.request(["a"], model="risk")
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "host", ["desk.example.org", "10.0.0.7", "localhost.example.org", "127.example.org", "0.0.0.0"]
)
def test_the_token_does_not_leave_the_machine_in_clear(host: str) -> None:
    with pytest.raises(ValueError, match="unencrypted"):
        Client(f"http://{host}", "token")
    assert Client(f"http://{host}", "token", insecure=True).url == f"http://{host}"
    assert Client(f"https://{host}", "token").url == f"https://{host}"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_this_machine_may_be_called_by_plain_http(host: str) -> None:
    assert Client(f"http://{host}:8311", "token").url == f"http://{host}:8311"


def test_a_proxy_does_not_see_what_is_meant_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with moody() as (proxy, elsewhere):
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with moody() as (client, server):
            client.me()
        assert (len(server.seen), elsewhere.seen) == (1, [])


def test_an_action_is_not_repeated_when_it_may_have_been_done() -> None:
    with (
        moody(Scripted.busy, Scripted.hang_up) as (client, server),
        pytest.raises(TryAgain),
    ):
        client.verify("0" * 32)
    assert len(server.seen) == 2  # again after 503, which did nothing; not after silence


def test_retries_come_to_an_end() -> None:
    with moody(*[Scripted.busy] * 20) as (client, server), pytest.raises(TryAgain) as last:
        client.me()
    assert (last.value.status, last.value.code, len(server.seen)) == (503, "busy", 5)


def test_a_refusal_is_not_repeated() -> None:
    problem = {"type": "urn:letheon:problem:wrong-state", "title": "no", "detail": "do this"}
    moods = moody(lambda item: item.answer(409, problem))
    with moods as (client, server), pytest.raises(CallRefused, match="no: do this"):
        client.request(["a"], model="risk")
    assert len(server.seen) == 1


def test_redirects_are_not_followed_with_the_token() -> None:
    with moody() as (other, elsewhere), moody() as (client, server):
        server.moods = [lambda item: item.answer(307, Location=f"{other.url}/")]
        with pytest.raises(DeskError) as refused:
            client.me()
    assert refused.value.status == 307
    assert elsewhere.seen == []


def test_an_answer_that_is_no_problem_is_an_error_all_the_same() -> None:
    with moody(lambda item: item.answer(400, ["odd"])) as (client, _), pytest.raises(CallRefused):
        client.me()


def test_no_server() -> None:
    with moody() as (client, _):
        pass
    with pytest.raises(TryAgain, match=f"could not be reached: {client.url}: "):
        Client(client.url, "token", retries=0).verify("0" * 32)


def test_an_untrusted_certificate_is_reported_at_once(tmp_path: Path) -> None:
    context, certificate = certified(tmp_path, "localhost")
    with moody(context=context) as (client, server):
        url = client.url.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(DeskError, match=r"not trusted: .*cafile") as refused:
            Client(url, "token").me()
        assert (refused.value.code, isinstance(refused.value, TryAgain)) == ("not-trusted", False)
        trusting = ssl.create_default_context(cafile=certificate)
        assert Client(url, "token", context=trusting).me()["id"] == "a"
    assert len(server.seen) == 1


def test_parts_of_a_path_cannot_leave_it() -> None:
    with moody() as (client, server):
        client.find("../tokens?x=1#y")
    assert server.seen[0][1] == "/api/v1/requests/..%2Ftokens%3Fx%3D1%23y"


def test_a_job_is_waited_for_and_its_failure_raised() -> None:
    started = {"id": "j", "is_over": False, "problem": None}
    over = {"id": "j", "is_over": True, "problem": None, "result": {}}
    failed = over | {"problem": {"code": "failed", "words": "no memory"}}

    with moody(says(200, started), says(200, started), says(200, over)) as (client, server):
        assert client.what_if("risk", people=3, tenant="acme") == over
        assert server.seen[0][1] == "/api/v1/models/risk/what-if?people=3&tenant=acme"
        server.moods = [says(200, started), says(200, failed)]
        with pytest.raises(CallRefused, match="no memory"):
            client.audit(drill="log")
        server.moods = [says(200, started)]
        assert client.apply("risk", wait=False) == started
