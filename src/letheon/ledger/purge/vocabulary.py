"""The ledger's own words, which occur in its files no matter which ids were erased.

An id may be ``calendar``, or a number that looks like a time. Such an id cannot be distinguished
from the ledger's own words, so a match says nothing about the person. The id is excluded from the
search, and the attestation counts it. Values that could contain personal data because of a bug are
not own words: tags, and fields of events, jobs and messages that are not listed below. The texts of
facts and signed statements are own words, because they have schemas and contain only codes, digests
and numbers. Names of models, stores and tokens, which operators choose, are own words too.
"""

import json
import re
import socket
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    ScalarResult,
    Text,
    or_,
    select,
    text,
)

from letheon.ledger import tables as _tables
from letheon.ledger.core import Core
from letheon.ledger.requests.states import (
    HOLD_GROUNDS,
    NO_DATA_HELD,
    REJECT_GROUNDS,
    REQUEST_GROUNDS,
    STATES,
)
from letheon.ledger.settings import FILE
from letheon.verifier import PAYLOAD_TYPE, SCHEMAS, STATEMENT_TYPE, from_base64, parse_strict

_DESK_FILE = "service.toml"
_MOST_WORDS = 200
_MOST_INT64 = (1 << 63) - 1
# Names of files and folders, fields of envelopes, notes and proofs, words of SQLite.
_FIXED = (
    "SQLite format 3 sqlite_sequence sqlite_schema sqlite_master sqlite_autoindex_ sqlite_stat1 "
    "blobs proofs certificates purges checkpoints keys public root.pub current ledger.db-journal "
    ".partial .markers .problems .lock letheon.toml tag.key epoch-intake-training-noise-purge-sign "
    "service.toml service.key .desk "
    "payload payloadType signatures keyid sig scheme slots erased slot leaf siblings "
    "letheon-seal-v1 not_before problems tries destroyed dropped lease-holder"
)
# Fields of events and evidence whose values are codes, digests and random ids of the ledger.
_CODES = (
    "kind from ground reason regime due tz method tier models model subject root training batch "
    "request of ledger key statement certificate purge store type scope owner keys blobs journal "
    "by requests settings"
)
_CODED = frozenset(_CODES.split())
# The same for jobs, their results and webhook messages of the service. There `reason` is a
# sentence.
_DESK_CODES = (
    "type timestamp state due_on version tenant drill levels level name verdict audited_at what "
    "basis code"
)
_DESK_CODED = (_CODED - {"reason"}) | frozenset(_DESK_CODES.split())
# Columns into which a bug could write personal data; they are never own words.
_ABOUT_PEOPLE = frozenset({"key_tag", "body_tag", "nonce", "tag"})
# JSON columns, their fields with codes (None: all), and whether a word may occur by chance.
_JSON: tuple[tuple[Column[str], frozenset[str] | None, bool], ...] = (
    (_tables.events.c.body, _CODED, False),
    (_tables.purge_steps.c.evidence, _CODED, False),
    (_tables.versions.c.facts, None, False),
    (_tables.jobs.c.asked, _DESK_CODED, True),
    (_tables.jobs.c.progress, _DESK_CODED, True),
    (_tables.jobs.c.result, _DESK_CODED, True),
    (_tables.deliveries.c.body, _DESK_CODED, True),
)
_OPAQUE = (_tables.actions.c.about, _tables.deliveries.c.about)
_APART = (*(column for column, *_ in _JSON), *_OPAQUE)
_DIGEST = re.compile(r"[0-9a-f]{16,}")
_PROSE = re.compile(r"[A-Za-z]+")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:]{0,8}Z?)?")


def find_own_words(core: Core, texts: Iterable[str]) -> frozenset[str]:
    """Return those texts that are words, names, numbers or times which the ledger itself writes.

    If very many texts are not fixed words, a file is probably a copy of a whole table. Only the
    fixed words are then returned, and an operator must remove the copy first.
    """
    fixed, candidates = _load_fixed_text(core), frozenset(texts)
    own = {word for word in candidates if _is_fixed(core, fixed, word)}
    if len(candidates - own) > _MOST_WORDS:
        return frozenset(own)
    with core.database.reading() as conn:
        own |= {word for word in candidates - own if _is_in_database(conn, word)}
        for envelope in _iter_envelopes(core, conn) if candidates - own else ():
            own |= {word for word in candidates - own if _is_in_envelope(envelope, word)}
    for path in core.subfolder("proofs").glob("*/*.json") if candidates - own else ():
        # A proof contains only slots and hashes.
        proof = path.read_bytes()
        own |= {word for word in candidates - own if word.encode() in proof}
    return frozenset(own)


def _is_fixed(core: Core, fixed: str, word: str) -> bool:
    """Return whether a word is in the fixed texts, a date, or the number of a signed file."""
    names = (f"certificates/{word}.json", f"purges/{word}.json", f"checkpoints/{word}.txt")
    is_number = word.isdecimal() and any((core.folder / name).exists() for name in names)
    return word in fixed or _DATE.fullmatch(word) is not None or is_number


def _load_fixed_text(core: Core) -> str:
    tables = _tables.metadata.sorted_tables
    settings = [core.folder / name for name in (FILE, _DESK_FILE)]
    parts = [
        _FIXED,
        *(path.read_text("utf-8") for path in settings if path.exists()),
        *(json.dumps(schema) for schema in SCHEMAS.values()),
        *(PAYLOAD_TYPE, STATEMENT_TYPE, socket.gethostname()),
        *(name for table in tables for name in (table.name, *table.columns.keys())),
        *(ground for group in REQUEST_GROUNDS.values() for ground in group),
        *(*STATES, *REJECT_GROUNDS, *HOLD_GROUNDS, NO_DATA_HELD),
    ]
    if core.database.path is not None:
        # SQLite stores the CREATE statements as text.
        with core.database.reading() as conn:
            rows = conn.execute(text("SELECT name, sql FROM sqlite_master")).all()
        parts += [part for row in rows for part in row if part]
    return "\n".join(parts)


def _is_in_database(conn: Connection, word: str) -> bool:
    if "\0" in word:  # PostgreSQL cannot store it
        return False

    def texts_in(column: Column[str]) -> ScalarResult[str]:
        return conn.scalars(select(column).where(column.contains(word, autoescape=True)))

    return (
        _is_in_columns(conn, word)
        or any(
            _is_own(json.loads(body), word, coded, by_chance=by_chance)
            for column, coded, by_chance in _JSON
            for body in texts_in(column)
        )
        or any(_is_chance(value, word) for column in _OPAQUE for value in texts_in(column))
    )


def _is_in_columns(conn: Connection, word: str) -> bool:
    """Return whether a word occurs in a text or integer column that has no personal data."""
    for table in _tables.metadata.sorted_tables:
        same = [test for column in table.columns for test in _column_tests(column, word)]
        if same and conn.execute(select(table.c[0]).where(or_(*same)).limit(1)).first():
            return True
    return False


def _column_tests(column: Column[Any], word: str) -> Iterator[ColumnElement[bool]]:
    if isinstance(column.type, BigInteger):
        if word.isascii() and word.isdecimal() and int(word) <= _MOST_INT64:
            yield column == int(word)
    elif (
        isinstance(column.type, Text)
        and column.name not in _ABOUT_PEOPLE
        and not any(column is each for each in _APART)
    ):
        yield column.contains(word, autoescape=True)


def _is_chance(text: str, word: str) -> bool:
    """Return whether a word occurs by chance: in a digest, or as a word of a sentence."""
    if _DIGEST.fullmatch(text):
        return word != text
    return " " in text.strip() and word in _PROSE.findall(text)


def _is_in_envelope(envelope: bytes, word: str) -> bool:
    """Return whether a word is an own word in a signed statement, or occurs in its encoding."""
    data = word.encode()
    if data in envelope:
        return True
    payload = from_base64(parse_strict(envelope)["payload"])
    return data in payload and _is_own(parse_strict(payload), word, None)


def _iter_envelopes(core: Core, conn: Connection) -> Iterator[bytes]:
    yield from core.keys.statements()
    for table in (_tables.certificates, _tables.purges):
        query = select(table.c.envelope).execution_options(yield_per=100)
        yield from (bytes(envelope) for envelope in conn.scalars(query))


def _is_own(
    value: Any, word: str, coded: frozenset[str] | None, *, by_chance: bool = False
) -> bool:
    """Return whether a word in a JSON value is part of a field name, a code or a number.

    `coded` names the fields whose values are codes; None means all fields. A word that spans
    several texts, and is in none of them, is an own word too.
    """
    verdicts = [
        is_own or (by_chance and _is_chance(text, word))
        for text, is_own in _iter_texts(value, coded)
        if word in text
    ]
    return any(verdicts) or not verdicts


def _iter_texts(
    value: Any, coded: frozenset[str] | None, *, is_own: bool = True
) -> Iterator[tuple[str, bool]]:
    """Yield (text, whether it is an own word) for every field name and value of a JSON value.

    String values are own words only in the fields `coded`; None means all fields.
    """
    if isinstance(value, dict):
        for field, item in value.items():
            yield field, True
            yield from _iter_texts(item, coded, is_own=coded is None or field in coded)
    elif isinstance(value, list):
        for item in value:
            yield from _iter_texts(item, coded, is_own=is_own)
    else:
        yield str(value), is_own or not isinstance(value, str)
