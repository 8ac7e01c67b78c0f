"""Tokens and sessions: random, stored as hashes, scoped, expiring; no grants beyond own scopes."""

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from letheon.ledger.db.tokens import KNOWING, Sessions, require_scopes
from letheon.ledger.tables import actions, sessions, tokens
from letheon.service import ROLES, SCOPES, ServiceSettings, Tokens
from tests.service.desks import OTHER, Desk

DAY = 86_400


def known(desk: Desk) -> Tokens:
    return Tokens(desk.ledger, desk.clock)


def test_a_token_is_found_until_it_expires(desk: Desk) -> None:
    text, token = known(desk).create("ci", "operator", days=2)
    assert known(desk).find_by_text(text) == token
    desk.clock.now += 2 * DAY - 1
    assert known(desk).find_by_text(text) == token
    desk.clock.now += 1
    assert known(desk).find_by_text(text) is None


def test_a_revoked_token_opens_nothing(desk: Desk) -> None:
    text, token = known(desk).create("ci", "operator")
    assert known(desk).revoke(token.id)
    assert known(desk).find_by_text(text) is None
    assert not known(desk).revoke(token.id)


def test_the_text_of_a_token_is_nowhere_in_the_ledger(desk: Desk) -> None:
    text, _ = known(desk).create("ci", "operator")
    desk.ledger.close()
    held = [path.read_bytes() for path in desk.folder.rglob("*") if path.is_file()]
    assert not any(text.encode() in content for content in held)
    assert any(b"first" in content or b"operator" in content for content in held)


def test_texts_are_256_random_bits(desk: Desk) -> None:
    texts = {known(desk).create("ci", "operator")[0] for _ in range(20)}
    assert len(texts) == 20
    assert {len(text) for text in texts} == {4 + 43}


@pytest.mark.parametrize(
    "text", ["", "lth_", "lth_x", "lth_" + "A" * 43, "lth_" + "A" * 5000, "Bearer lth_"]
)
def test_other_texts_are_no_tokens(shared_desk: Desk, text: str) -> None:
    assert known(shared_desk).find_by_text(text) is None


@given(st.sampled_from(sorted(ROLES)), st.sets(st.sampled_from(sorted(SCOPES)), max_size=6))
def test_a_token_has_no_scope_that_its_role_has_not(role: str, wanted: set[str]) -> None:
    if not wanted or not wanted <= ROLES[role]:
        with pytest.raises(ValueError, match=r"does not have|scopes is empty"):
            require_scopes(role, wanted)
    elif "requests:file" not in wanted or wanted & KNOWING:
        assert require_scopes(role, wanted) == wanted


COUNTS = (
    "batches:read batches:run certificates:read bundles:read audits:read audits:run monitor:read "
    "webhooks:manage metrics:read"
)


def test_who_files_requests_without_seeing_them_sees_no_counts(desk: Desk) -> None:
    # The plan of the next batch has one person more if the person is in the model.
    client, filing = desk.client(), ["requests:file", "requests:vouch"]
    for scope in COUNTS.split():
        wanted = {"name": "x", "role": "admin", "scopes": [*filing, scope]}
        answer = client.post("/api/v1/tokens", json=wanted)
        assert answer.status_code == 422
        assert scope in answer.json()["detail"]
        wanted["scopes"] = [*filing, "requests:read", scope]
        assert client.post("/api/v1/tokens", json=wanted).status_code == 201


@pytest.mark.parametrize(
    ("name", "role", "given"),
    [
        ("Jane Doe <jane@example.org>", "admin", {}),
        ("ci", "root", {}),
        ("ci", "admin", {"days": 0}),
        ("ci", "admin", {"days": 4000}),
        ("ci", "admin", {"tenant": "a/b"}),
        ("ci", "auditor", {"scopes": ["tokens:manage"]}),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(
    shared_desk: Desk, name: str, role: str, given: dict[str, object]
) -> None:
    before = len(known(shared_desk).list_newest(limit=1000))
    with pytest.raises(ValueError, match=r".{20}"):
        known(shared_desk).create(name, role, **given)  # type: ignore[arg-type]
    assert len(known(shared_desk).list_newest(limit=1000)) == before


def test_pages_of_tokens_are_the_whole_list(desk: Desk) -> None:
    whole = [token.id for token in known(desk).list_newest(limit=1000)]
    items: list[str] = []
    while part := known(desk).list_newest(after=items[-1] if items else None, limit=4):
        items += [token.id for token in part]
    assert items == whole
    assert len(whole) > 12


def test_who_makes_and_revokes_is_noted(desk: Desk) -> None:
    maker = known(desk).find_valid(desk.tokens["admin"].id)
    _, token = known(desk).create("ci", "operator", by=maker)
    known(desk).revoke(token.id, by="fedcba9876543210")
    with desk.ledger._core.database.reading() as conn:
        rows = conn.execute(select(actions).where(actions.c.about == token.id)).all()
    assert [(row.action, row.token_id) for row in rows] == [
        ("token.made", desk.tokens["admin"].id),
        ("token.revoked", "fedcba9876543210"),
    ]


def test_the_api_makes_lists_and_revokes_tokens(desk: Desk) -> None:
    admin = desk.client()
    desk.clock.now += 1
    made = admin.post("/api/v1/tokens", json={"name": "reviewer", "role": "auditor"})
    assert made.status_code == 201
    fresh = desk.client(None, cookies={})
    fresh.headers["Authorization"] = f"Bearer {made.json()['token']}"
    me = fresh.get("/api/v1/me").json()
    assert (me["role"], me["tenant"]) == ("auditor", None)
    assert set(me["scopes"]) == ROLES["auditor"]
    listed = admin.get("/api/v1/tokens", params={"limit": 1}).json()
    assert listed["items"][0]["id"] == made.json()["id"]
    assert "token" not in listed["items"][0]
    assert admin.delete(f"/api/v1/tokens/{made.json()['id']}").status_code == 204
    assert fresh.get("/api/v1/me").status_code == 401


def test_a_token_cannot_grant_scopes_that_it_lacks(desk: Desk) -> None:
    made = desk.client().post(
        "/api/v1/tokens",
        json={"name": "helper", "role": "admin", "scopes": ["tokens:manage", "requests:read"]},
    )
    helper = desk.client(None)
    helper.headers["Authorization"] = f"Bearer {made.json()['token']}"
    asked = [
        {"name": "x", "role": "admin"},
        {"name": "x", "role": "operator"},
        {"name": "x", "role": "admin", "scopes": ["bundles:read"]},
    ]
    assert [helper.post("/api/v1/tokens", json=item).status_code for item in asked] == [403] * 3
    allowed = {"name": "x", "role": "approver", "scopes": ["requests:read"]}
    assert helper.post("/api/v1/tokens", json=allowed).status_code == 201


def made_with(desk: Desk, text: str, **wanted: object) -> dict[str, str]:
    client = desk.client(None)
    client.headers["Authorization"] = f"Bearer {text}"
    made = client.post("/api/v1/tokens", json={"name": "x", "role": "admin"} | wanted)
    assert made.status_code == 201, made.text
    document: dict[str, str] = made.json()
    return document


def test_a_token_ends_with_its_maker_at_the_latest(desk: Desk) -> None:
    short = made_with(desk, desk.tokens["admin"].text, days=1)
    child = made_with(desk, short["token"], days=3650)
    assert child["expires_at"] == short["expires_at"]


def test_a_stolen_token_is_taken_back_with_its_descendants(desk: Desk) -> None:
    stolen = made_with(desk, desk.tokens["admin"].text)
    child = made_with(desk, stolen["token"])
    grandchild = made_with(desk, child["token"])
    other = made_with(desk, desk.tokens["admin"].text)
    path = f"/api/v1/tokens/{stolen['id']}"
    assert desk.client().delete(path, params={"descendants": True}).status_code == 204
    by_name = {
        name: known(desk).find_by_text(one["token"]) is not None
        for name, one in {
            "stolen": stolen,
            "child": child,
            "grandchild": grandchild,
            "other": other,
        }.items()
    }
    assert by_name == {"stolen": False, "child": False, "grandchild": False, "other": True}


def test_without_a_word_descendants_stay(desk: Desk) -> None:
    maker = made_with(desk, desk.tokens["admin"].text)
    child = made_with(desk, maker["token"])
    assert known(desk).revoke(maker["id"]) == 1
    assert known(desk).find_by_text(child["token"]) is not None


def test_a_token_cannot_revoke_one_with_more_scopes(desk: Desk) -> None:
    narrow = made_with(desk, desk.tokens["admin"].text, scopes=["tokens:manage"])
    client = desk.client(None)
    client.headers["Authorization"] = f"Bearer {narrow['token']}"
    response = client.delete(f"/api/v1/tokens/{desk.tokens['admin'].id}")
    assert (response.status_code, response.json()["type"]) == (
        403,
        "urn:letheon:problem:beyond-own",
    )
    assert known(desk).find_valid(desk.tokens["admin"].id) is not None


def test_a_tenants_admin_stays_within_the_tenant(desk: Desk) -> None:
    bound = desk.client(f"admin@{OTHER}")
    made = bound.post("/api/v1/tokens", json={"name": "x", "role": "operator"})
    assert made.json()["tenant"] == OTHER
    other = {"name": "x", "role": "operator", "tenant": "default"}
    assert bound.post("/api/v1/tokens", json=other).status_code == 404
    seen = {item["tenant"] for item in bound.get("/api/v1/tokens").json()["items"]}
    assert seen == {OTHER}
    unbound = desk.tokens["operator"].id
    assert bound.delete(f"/api/v1/tokens/{unbound}").status_code == 404
    assert known(desk).find_valid(unbound) is not None


def test_a_session_ends_by_time_by_idleness_and_with_its_token(desk: Desk) -> None:
    held = Sessions(desk.ledger, 2 * 3600, 30 * 60)
    token_id = desk.tokens["operator"].id
    cookie, session = held.start(token_id)
    assert held.find(cookie) == session
    assert held.find(cookie + "x") is None
    for _ in range(3):
        desk.clock.now += 29 * 60
        assert held.find(cookie) is not None
    desk.clock.now += 31 * 60
    assert held.find(cookie) is None
    cookie, session = held.start(token_id)
    with desk.ledger._core.database.reading() as conn:
        assert len(conn.execute(select(sessions)).all()) == 1, "the old one was swept"
    held.end(session.id)
    assert held.find(cookie) is None


def test_a_page_that_is_read_does_not_wait_for_who_writes(desk: Desk) -> None:
    held = Sessions(desk.ledger, DAY, 3600)
    cookie, _ = held.start(desk.tokens["operator"].id)
    desk.clock.now += 600
    done = threading.Event()

    def look() -> None:
        if held.find(cookie) is not None:
            done.set()

    with desk.ledger._core.database.transaction():
        looker = threading.Thread(target=look)
        looker.start()
        assert done.wait(30), "it waited for the writer"
    looker.join()


def test_csrf_tokens_belong_to_one_session(desk: Desk) -> None:
    held = Sessions(desk.ledger, DAY, 3600)
    _, one = held.start(desk.tokens["operator"].id)
    _, other = held.start(desk.tokens["operator"].id)
    assert one.accepts_csrf(one.csrf)
    assert not one.accepts_csrf(other.csrf)
    assert not one.accepts_csrf(None)
    assert not one.accepts_csrf("")


def test_cookies_are_kept_as_hashes(desk: Desk) -> None:
    cookie, _ = Sessions(desk.ledger, DAY, 3600).start(desk.tokens["operator"].id)
    with desk.ledger._core.database.reading() as conn:
        rows = [tuple(row) for row in conn.execute(select(sessions))]
        rows += [tuple(row) for row in conn.execute(select(tokens))]
    assert rows
    assert cookie not in str(rows)


def test_settings_are_read_from_the_home(tmp_path: Path) -> None:
    assert ServiceSettings.read(tmp_path) == ServiceSettings()
    (tmp_path / "service.toml").write_text(
        'public_url = "https://desk.example.org"\nhosts = ["desk"]\nsession_hours = 3\n'
        'webhook_hosts = ["hooks.example.org", {host = "http://10.0.0.5:80", internal = true}]\n'
    )
    outcome = ServiceSettings.read(tmp_path)
    assert (outcome.session_hours, outcome.hosts, outcome.is_https) == (3, ("desk",), True)


@pytest.mark.parametrize(
    "text",
    [
        "sesion_hours = 3",
        "session_hours = 0",
        'session_hours = "3"',
        'public_url = "desk.example.org"',
        'rate_login = "often"',
        'hosts = "desk"',
        "hosts = [3]",
        'webhook_hosts = ["http://"]',
        "session_hours = ",
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str) -> None:
    from letheon.exceptions import LedgerError

    (tmp_path / "service.toml").write_text(text)
    with pytest.raises(LedgerError, match=r"service\.toml: .{10}"):
        ServiceSettings.read(tmp_path)
