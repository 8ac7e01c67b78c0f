"""The tables of a ledger, as SQLAlchemy sees them.

Times are whole seconds since 1970 (UTC), days are text ``YYYY-MM-DD``, digests and random ids are
lower-case hex. Nothing here holds a person's id in the clear: bodies are sealed, tags are keyed.
The first migration creates them from this metadata.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Table, Text, text

LISTED_BY = ("tenant", "model_id", "state", "regime", "filed_by")

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _number() -> "Column[int]":
    # SQLite counts upwards in a column of exactly the type INTEGER.
    kind = BigInteger().with_variant(sa.Integer, "sqlite")
    return Column("id", kind, primary_key=True, autoincrement=True)


def _key(*names: str) -> "list[Column[str]]":
    return [Column(name, Text, primary_key=True) for name in names]


def _sequence(name: str = "sequence") -> "Column[int]":
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


def _whole(*names: str, null: bool = False, default: int | None = None) -> "list[Column[int]]":
    start = None if default is None else text(str(default))
    return [Column(name, BigInteger, nullable=null, server_default=start) for name in names]


def _text(*names: str, null: bool = False, unique: bool | None = None) -> "list[Column[str]]":
    return [Column(name, Text, nullable=null, unique=unique) for name in names]


def _blob(name: str, *, null: bool = False) -> "Column[bytes]":
    return Column(name, sa.LargeBinary, nullable=null)


def _of(name: str, target: str, *, null: bool = False, **options: Any) -> "Column[Any]":
    """Refer to another table: a text where the name of what is referred to is one."""
    kind = Text if target.partition(".")[0] in _NAMED else BigInteger
    return Column(name, kind, sa.ForeignKey(target), nullable=null, **options)


_NAMED = ("batches", "requests", "tokens", "webhooks")


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _index_where(condition: str, name: str, *columns: "Column[Any]", unique: bool = False) -> None:
    where = text(condition)
    Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


def _table(name: str, *parts: Any) -> Table:
    """Return a table of columns, lists of columns, constraints and indexes."""
    flat = [one for part in parts for one in (part if isinstance(part, list) else [part])]
    return Table(name, metadata, *flat)


meta = _table("meta", _key("key"), _text("value"))

models = _table(
    "models",
    _number(),
    _text("tenant", "name"),
    _text("folder", unique=True),
    _text("dataset", "method"),
    _whole("slots"),
    _text("preprocessing", "releases"),
    _whole("created_at"),
    _text("trusted"),
    Column("origin", Text, nullable=False, server_default=text("'own'")),
    sa.UniqueConstraint("tenant", "name"),
)

batches = _table(
    "batches",
    _key("id"),
    _of("model_id", "models.id"),
    _text("kind"),
    _whole("parent_id"),
    _text("state"),
    _whole("created_at"),
    _text("reason"),
    _whole("fence"),
    _text("training_key", "beacon", null=True),
    _one_of("kind", "erase", "retrain"),
    _one_of("state", "open", "published", "certified", "purged", "abandoned"),
)
_index_where("state = 'open'", "one_open_batch_per_model", batches.c.model_id, unique=True)

versions = _table(
    "versions",
    _number(),
    _of("model_id", "models.id"),
    _whole("number"),
    _of("parent_id", "versions.id", null=True, unique=True),
    _of("batch_id", "batches.id", null=True, unique=True),
    Column("sequence", BigInteger, unique=True),
    _text("model_blob", "rows_blob", "ids_blob", "vault_blob"),
    _text("monitor_blob", null=True),
    _text("epoch_key", "root"),
    _whole("live"),
    _text("facts"),
    _whole("published_at"),
    _whole("certified_at", null=True),
    _text("checkpoint_before", null=True),
    _whole("purged_at", null=True),
    sa.UniqueConstraint("model_id", "number"),
)

heads = _table(
    "heads",
    _of("model_id", "models.id", primary_key=True),
    _of("version_id", "versions.id"),
    _whole("fence", default=0),
    _text("owner", null=True),
    _whole("lease_until", default=0),
)

requests = _table(
    "requests",
    _key("id"),
    _text("tenant"),
    _of("model_id", "models.id"),
    _text("state", "regime", "ground"),
    _whole("received_at"),
    _text("due_on"),
    _text("extended_to", null=True),
    _text("key_tag", "body_tag"),
    _blob("sealed", null=True),
    _text("intake_key", null=True),
    _text("nonce"),
    _whole("n_ids", "n_rows"),
    _of("batch_id", "batches.id", null=True),
    _of("duplicate_of", "requests.id", null=True),
    _text("hold_ground", null=True),
    _whole("hold_until", null=True),
    _whole("tries", "not_before", default=0),
    _whole("paused_at", null=True),
    _whole("paused_seconds", default=0),
    _text("reason", null=True),
    _whole("recipients", "closed_at", null=True),
    _text("filed_by", "verified_by", "receipt_key", null=True),
    _blob("receipt", null=True),
    Column("last_day", Text, sa.Computed("coalesce(extended_to, due_on)", persisted=True)),
    sa.UniqueConstraint("tenant", "key_tag"),
    Index(None, "model_id", "state"),
    Index(None, "batch_id"),
    Index(None, "duplicate_of"),
    Index(None, "intake_key"),
)
_index_where("body_tag <> ''", "requests_to_forget", requests.c.closed_at)

# Lists of requests are read along one of these, whatever they are filtered by: all columns that
# can be asked for are in the index, so that rows which do not match are never looked up.
_by_due = [requests.c[name] for name in ("last_day", "received_at", "id", *LISTED_BY)]
_newest = [requests.c[name] for name in ("received_at", "id", *LISTED_BY, "last_day")]
Index("requests_by_due", *_by_due)
Index("requests_newest", *_newest)
# Most requests of an old ledger are closed; what is late is found among the others.
_index_where("closed_at IS NULL", "requests_open", *_by_due)

allowed_moves = _table("allowed_moves", _key("before", "after"))

# One row for each person and each request that names them. `owner` marks the request that erases
# that person: there is one at most, so that one person is erased by one request, whoever races.
blocked = _table(
    "blocked",
    _text("tenant"),
    _of("model_id", "models.id", primary_key=True),
    _key("tag"),
    _of("request_id", "requests.id", primary_key=True),
    Column("owner", sa.Boolean, nullable=False),
    Index(None, "request_id"),
)
_index_where("owner", "one_owner_per_person", blocked.c.model_id, blocked.c.tag, unique=True)

# `about` is the opaque id of the request or batch that an event belongs to, for timelines; `era`
# counts the corrections of the clock.
events = _table(
    "events",
    _number(),
    _whole("at", "era"),
    _text("kind"),
    _text("about", null=True),
    _text("body", "leaf"),
    Column("log_index", BigInteger, unique=True),
    Index(None, "about"),
    Index(None, "kind"),
    Index(None, "era", "at"),
)
_index_where("log_index IS NULL", "events_to_integrate", events.c.id)

log = _table(
    "log",
    Column("id", sa.Integer, primary_key=True),
    _whole("size"),
    _text("frontier"),
    CheckConstraint("id = 1", name="one"),
)

checkpoints = _table("checkpoints", _sequence("size"), _text("root", "note"), _whole("at"))

certificates = _table(
    "certificates",
    _sequence(),
    _text("id", unique=True),
    _of("version_id", "versions.id", unique=True),
    _blob("envelope"),
    _whole("at"),
)

purges = _table(
    "purges",
    _sequence(),
    _text("id", unique=True),
    _of("batch_id", "batches.id", unique=True),
    _blob("envelope"),
    _whole("at"),
)

purge_steps = _table(
    "purge_steps",
    _of("batch_id", "batches.id", primary_key=True),
    _key("step"),
    _text("state"),
    _text("evidence", null=True),
    _whole("at"),
)

intake_keys = _table(
    "intake_keys", _key("id"), _whole("created_at"), _whole("destroyed_at", null=True)
)

pins = _table(
    "pins",
    _key("id"),
    _of("version_id", "versions.id"),
    _text("owner"),
    _whole("until"),
    Index(None, "version_id"),
)

stores = _table(
    "stores", _key("name"), _text("kind", "path", "owner", "scope"), _whole("days", null=True)
)

# What follows belongs to the desk: who may do what there, and what it was asked to do. Nothing in
# these tables is about a person who asks to be erased.
tokens = _table(
    "tokens",
    _key("id"),
    _text("hash", unique=True),
    _text("name", "role", "scopes"),
    _text("tenant", null=True),
    _whole("created_at", "expires_at"),
    _whole("revoked_at", null=True),
    _text("created_by", null=True),
)

sessions = _table(
    "sessions",
    _key("id"),
    _of("token_id", "tokens.id"),
    _text("csrf"),
    _whole("created_at", "expires_at", "last_seen_at"),
    Index(None, "token_id"),
)

webhooks = _table(
    "webhooks",
    _key("id"),
    _text("tenant", null=True),
    _text("url", "events"),
    _whole("created_at"),
    _text("created_by", null=True),
    _whole("cursor", default=0),
    _whole("disabled_at", null=True),
)

deliveries = _table(
    "deliveries",
    _key("id"),
    _of("webhook_id", "webhooks.id"),
    _text("kind", "about", "body"),
    _whole("created_at"),
    _whole("tries", "not_before", default=0),
    _whole("delivered_at", "given_up_at", "last_status", null=True),
    sa.UniqueConstraint("webhook_id", "kind", "about"),
)
_waiting = "delivered_at IS NULL AND given_up_at IS NULL"
_index_where(_waiting, "deliveries_to_try", deliveries.c.not_before)

jobs = _table(
    "jobs",
    _key("id"),
    _text("kind"),
    _text("tenant", "model", null=True),
    _text("asked", "state"),
    _whole("created_at"),
    _text("created_by", null=True),
    _whole("started_at", "finished_at", null=True),
    _text("progress"),
    _text("result", "owner", null=True),
    _whole("lease_until", default=0),
    _one_of("state", "queued", "running", "done", "failed"),
    Index(None, "state", "created_at"),
)

actions = _table(
    "actions", _number(), _whole("at"), _text("token_id", "action"), _text("about", null=True)
)
