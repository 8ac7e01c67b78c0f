"""The ledger's own words: what stands in its files whoever was erased.

Anybody may be called ``calendar``, or have a number that looks like a time. Such an id cannot be
told from the ledger's own words, so its finding says nothing about the person. It is left out of
the search and counted. What ledgers write about people is no own word: tags, bodies of requests,
and fields of events that are not on the list below.
"""

import json
import re
import socket
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Text, or_, select, text

from letheon.ledger import _tables
from letheon.ledger._core import Core
from letheon.ledger._grounds import HOLD_GROUNDS, REJECT_GROUNDS, REQUEST_GROUNDS
from letheon.ledger._moves import STATES
from letheon.ledger._settings import FILE
from letheon.verifier import PAYLOAD_TYPE, SCHEMAS, STATEMENT_TYPE, from_base64, parse_strict

__all__ = ["own_words"]

_MOST_INT64 = (1 << 63) - 1
# Names of files and folders, fields of envelopes, notes and proofs, words of SQLite itself.
_FIXED = (
    "SQLite format 3 sqlite_sequence sqlite_schema sqlite_master sqlite_autoindex_ sqlite_stat1 "
    "blobs proofs certificates purges checkpoints keys public root.pub current ledger.db-journal "
    ".partial .markers .problems .lock letheon.toml tag.key epoch-intake-training-noise-purge-sign "
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
# Parts of facts and statements whose texts might be about people, if a bug put them there.
_UNTOLD = frozenset({"erasure", "parameters"})
# Where a bug would write people: these are compared with nothing.
_ABOUT_PEOPLE = frozenset({"key_tag", "body_tag", "nonce", "tag"})
_JSON = (_tables.events.c.body, _tables.purge_steps.c.evidence)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:]{0,8}Z?)?")


def own_words(core: Core, texts: Iterable[str]) -> frozenset[str]:
    """Return which of these texts are words, names, numbers or times of the ledger itself."""
    fixed = _fixed_text(core)
    with core.database.reading() as conn:
        return frozenset(
            word
            for word in texts
            if word in fixed
            or _DATE.fullmatch(word)
            or _is_number_of_a_file(core, word)
            or _stands_in_database(conn, word)
            or _stands_in_envelopes(core, conn, word)
            or _stands_in_proofs(core, word)
        )


def _fixed_text(core: Core) -> str:
    tables = _tables.metadata.sorted_tables
    names = [name for table in tables for name in (table.name, *table.columns.keys())]
    grounds = [ground for group in REQUEST_GROUNDS.values() for ground in group]
    parts = [
        _FIXED,
        (core.folder / FILE).read_text("utf-8"),
        *(json.dumps(schema) for schema in SCHEMAS.values()),
        *(PAYLOAD_TYPE, STATEMENT_TYPE, socket.gethostname()),
        *names,
        *(*STATES, *grounds, *REJECT_GROUNDS, *HOLD_GROUNDS),
        *_schema_of(core),
    ]
    return "\n".join(parts)


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
        and column is not _tables.versions.c.facts
        and not any(column is one for one in _JSON)
    ):
        yield column.contains(word, autoescape=True)


def _is_whole(word: str) -> bool:
    return word.isascii() and word.isdecimal() and int(word) <= _MOST_INT64


def _stands_in_json(
    conn: Connection, column: Column[str], word: str, coded: frozenset[str] | None
) -> bool:
    query = select(column).where(column.contains(word, autoescape=True))
    return any(_is_own(json.loads(found), word, coded) for found in conn.scalars(query))


def _stands_in_envelopes(core: Core, conn: Connection, word: str) -> bool:
    """Whether a signed statement says it, but not of the erased; or its coding looks like it."""
    data = word.encode()
    for envelope in _envelopes(core, conn):
        if data in envelope:
            return True
        payload = from_base64(parse_strict(envelope)["payload"])
        if data in payload and _is_own(parse_strict(payload), word, None):
            return True
    return False


def _envelopes(core: Core, conn: Connection) -> Iterator[bytes]:
    yield from core.keys.statements()
    for table in (_tables.certificates, _tables.purges):
        query = select(table.c.envelope).execution_options(yield_per=100)
        yield from (bytes(envelope) for envelope in conn.scalars(query))


def _stands_in_proofs(core: Core, word: str) -> bool:
    """Whether it is a slot, or part of a hash: there is nothing else in a proof."""
    data = word.encode()
    return any(data in path.read_bytes() for path in core.place("proofs").glob("*/*.json"))


def _is_own(value: Any, word: str, coded: frozenset[str] | None) -> bool:
    """Whether it is part of a field's name, a number, or a text of a field that is coded."""
    digits = word if word.isdecimal() else ""
    return any(word in said for said in _said(value, digits, coded))


def _said(
    value: Any, digits: str, coded: frozenset[str] | None, is_told: bool = True
) -> Iterator[str]:
    """Yield own words; with `coded` texts of these fields only, else of all that may be told.

    Digits may be some of those of any measured figure, which is a text as well.
    """
    if isinstance(value, dict):
        for field, found in value.items():
            yield field
            tells = is_told and field not in _UNTOLD if coded is None else field in coded
            yield from _said(found, digits, coded, tells)
    elif isinstance(value, list):
        for found in value:
            yield from _said(found, digits, coded, is_told)
    elif is_told or not isinstance(value, str) or (coded is None and digits and value != digits):
        yield str(value)
