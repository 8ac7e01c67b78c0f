"""The ledger's own words: what stands in its files whoever was erased.

Anybody may be called ``calendar``, or have a number that looks like a time. Such an id cannot be
told from the ledger's own words, so its finding says nothing about the person. It is left out of
the search and counted. What could be about people, if a bug put it there, is no own word: tags,
and fields of events, jobs and messages that are not on the lists below. Facts and signed statements
are: they have schemas of their own, and hold codes, digests and figures. So are names that an
operator chose, of models, stores and tokens.
"""

import json
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Text, or_, select, text

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
# Names of files and folders, fields of envelopes, notes and proofs, words of SQLite itself.
_FIXED = (
    "SQLite format 3 sqlite_sequence sqlite_schema sqlite_master sqlite_autoindex_ sqlite_stat1 "
    "blobs proofs certificates purges checkpoints keys public root.pub current ledger.db-journal "
    ".partial .markers .problems .lock letheon.toml tag.key epoch-intake-training-noise-purge-sign "
    "service.toml service.key .desk "
    "payload payloadType signatures keyid sig scheme slots erased slot leaf siblings "
    "letheon-seal-v1 not_before problems tries destroyed dropped lease-holder"
)
# Fields of events and of evidence whose values are codes, digests, and ids that the ledger drew.
_CODES = (
    "kind from ground reason regime due tz method tier models model subject root training batch "
    "request of ledger key statement certificate purge store type scope owner keys blobs journal "
    "by requests"
)
_CODED = frozenset(_CODES.split())
# The same for what the desk was asked to do, what came out, and what it told others. There a reason
# is a sentence.
_DESK_CODES = (
    "type timestamp state due_on version tenant drill levels level name verdict audited_at what "
    "basis code"
)
_DESK_CODED = (_CODED - {"reason"}) | frozenset(_DESK_CODES.split())
# Where a bug would write people: these are compared with nothing.
_ABOUT_PEOPLE = frozenset({"key_tag", "body_tag", "nonce", "tag"})
_JSON = (_tables.events.c.body, _tables.purge_steps.c.evidence)
_DESK_JSON = (
    *(_tables.jobs.c.asked, _tables.jobs.c.progress, _tables.jobs.c.result),
    _tables.deliveries.c.body,
)
_OPAQUE = (_tables.actions.c.about, _tables.deliveries.c.about)
_APART = (*_JSON, *_DESK_JSON, *_OPAQUE, _tables.versions.c.facts)
_DIGEST = re.compile(r"[0-9a-f]{16,}")
_PROSE = re.compile(r"[A-Za-z]+")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:]{0,8}Z?)?")


def own_words(core: Core, texts: Iterable[str]) -> frozenset[str]:
    """Return which of these texts are words, names, numbers or times of the ledger itself.

    If very many are no fixed words, there is a copy of a whole table somewhere. Then only the fixed
    words are returned: what was found has to be removed first.
    """
    fixed, wanted = _fixed_text(core), frozenset(texts)
    own = {word for word in wanted if _is_fixed(core, fixed, word)}
    if len(wanted - own) > _MOST_WORDS:
        return frozenset(own)
    with core.database.reading() as conn:
        own |= {word for word in wanted - own if _stands_in_database(conn, word)}
        for envelope in _envelopes(core, conn) if wanted - own else ():
            own |= {word for word in wanted - own if _stands_in_envelope(envelope, word)}
    for path in core.place("proofs").glob("*/*.json") if wanted - own else ():
        # A proof has slots and hashes, and nothing else.
        proof = path.read_bytes()
        own |= {word for word in wanted - own if word.encode() in proof}
    return frozenset(own)


def _is_fixed(core: Core, fixed: str, word: str) -> bool:
    is_date = _DATE.fullmatch(word) is not None
    return word in fixed or is_date or _is_number_of_a_file(core, word)


def _fixed_text(core: Core) -> str:
    tables = _tables.metadata.sorted_tables
    names = [name for table in tables for name in (table.name, *table.columns.keys())]
    grounds = [ground for group in REQUEST_GROUNDS.values() for ground in group]
    parts = [
        _FIXED,
        *(path.read_text("utf-8") for path in _settings_of(core)),
        *(json.dumps(schema) for schema in SCHEMAS.values()),
        *(PAYLOAD_TYPE, STATEMENT_TYPE, socket.gethostname()),
        *names,
        *(*STATES, *grounds, *REJECT_GROUNDS, *HOLD_GROUNDS, NO_DATA_HELD),
        *_schema_of(core),
    ]
    return "\n".join(parts)


def _settings_of(core: Core) -> list[Path]:
    return [path for name in (FILE, _DESK_FILE) if (path := core.folder / name).exists()]


def _schema_of(core: Core) -> list[str]:
    """Return the statements that made the tables: they lie in SQLite's file as text."""
    if core.database.path is None:
        return []
    with core.database.reading() as conn:
        found = conn.execute(text("SELECT name, sql FROM sqlite_master")).all()
    return [part for row in found for part in row if part]


def _is_number_of_a_file(core: Core, word: str) -> bool:
    if not word.isdecimal():
        return False
    names = (f"certificates/{word}.json", f"purges/{word}.json", f"checkpoints/{word}.txt")
    return any((core.folder / name).exists() for name in names)


def _stands_in_database(conn: Connection, word: str) -> bool:
    if "\0" in word:  # PostgreSQL has no such text
        return False
    return (
        _stands_in_columns(conn, word)
        or any(_stands_in_json(conn, column, word, _CODED) for column in _JSON)
        or _stands_in_json(conn, _tables.versions.c.facts, word, None)
        or any(_stands_in_desk(conn, column, word) for column in (*_DESK_JSON, *_OPAQUE))
    )


def _stands_in_columns(conn: Connection, word: str) -> bool:
    """Whether it is part of a text, or a whole number, in a column that is not about people."""
    for table in _tables.metadata.sorted_tables:
        same = [test for column in table.columns for test in _tests(column, word)]
        if same and conn.execute(select(table.c[0]).where(or_(*same)).limit(1)).first():
            return True
    return False


def _tests(column: Column[Any], word: str) -> Iterator[ColumnElement[bool]]:
    if isinstance(column.type, BigInteger):
        if _is_whole(word):
            yield column == int(word)
    elif (
        isinstance(column.type, Text)
        and column.name not in _ABOUT_PEOPLE
        and not any(column is one for one in _APART)
    ):
        yield column.contains(word, autoescape=True)


def _is_whole(word: str) -> bool:
    return word.isascii() and word.isdecimal() and int(word) <= _MOST_INT64


def _stands_in_json(
    conn: Connection, column: Column[str], word: str, coded: frozenset[str] | None
) -> bool:
    query = select(column).where(column.contains(word, autoescape=True))
    return any(_is_own(json.loads(found), word, coded) for found in conn.scalars(query))


def _stands_in_desk(conn: Connection, column: Column[str], word: str) -> bool:
    """Whether it is a code, or there by chance, in a text that the desk wrote."""
    query = select(column).where(column.contains(word, autoescape=True))
    values = conn.scalars(query)
    if any(column is one for one in _OPAQUE):
        return any(_is_chance(value, word) for value in values)
    return any(_is_own(json.loads(value), word, _DESK_CODED, by_chance=True) for value in values)


def _is_chance(said: str, word: str) -> bool:
    """Whether it is a part of a digest, or a word of letters in a sentence."""
    if _DIGEST.fullmatch(said):
        return word != said
    return " " in said.strip() and word in _PROSE.findall(said)


def _stands_in_envelope(envelope: bytes, word: str) -> bool:
    """Whether a signed statement says it, or its coding looks like it."""
    data = word.encode()
    if data in envelope:
        return True
    payload = from_base64(parse_strict(envelope)["payload"])
    return data in payload and _is_own(parse_strict(payload), word, None)


def _envelopes(core: Core, conn: Connection) -> Iterator[bytes]:
    yield from core.keys.statements()
    for table in (_tables.certificates, _tables.purges):
        query = select(table.c.envelope).execution_options(yield_per=100)
        yield from (bytes(envelope) for envelope in conn.scalars(query))


def _is_own(
    value: Any, word: str, coded: frozenset[str] | None, *, by_chance: bool = False
) -> bool:
    """Whether a word that stands in a JSON text is part of a field's name, a code or a number.

    It is the ledger's own as well if it is in no single text, but reaches over several.
    """
    found = [
        is_told or (by_chance and _is_chance(said, word))
        for said, is_told in _said(value, coded)
        if word in said
    ]
    return any(found) or not found


def _said(
    value: Any, coded: frozenset[str] | None, *, is_told: bool = True
) -> Iterator[tuple[str, bool]]:
    """Yield every text, and whether it is an own word; with `coded` texts of these fields are."""
    if isinstance(value, dict):
        for field, found in value.items():
            yield field, True
            yield from _said(found, coded, is_told=coded is None or field in coded)
    elif isinstance(value, list):
        for found in value:
            yield from _said(found, coded, is_told=is_told)
    else:
        yield str(value), is_told or not isinstance(value, str)
