"""The SQLAlchemy tables of a ledger.

Times are whole seconds since 1970 (UTC), dates are text ``YYYY-MM-DD``, digests and random ids are
lower-case hex. No table stores a person's id in plain text: bodies are encrypted, tags are keyed
hashes. The first migration creates the tables from this metadata.
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


def _row_number() -> "Column[int]":
    # SQLite autoincrements only columns whose type is exactly INTEGER.
    kind = BigInteger().with_variant(sa.Integer, "sqlite")
    return Column("id", kind, primary_key=True, autoincrement=True)


def _text_key(*names: str) -> "list[Column[str]]":
    return [Column(name, Text, primary_key=True) for name in names]


def _sequence_key(name: str = "sequence") -> "Column[int]":
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


def _integers(*names: str, null: bool = False, default: int | None = None) -> "list[Column[int]]":
    start = None if default is None else text(str(default))
    return [Column(name, BigInteger, nullable=null, server_default=start) for name in names]


def _texts(*names: str, null: bool = False, unique: bool | None = None) -> "list[Column[str]]":
    return [Column(name, Text, nullable=null, unique=unique) for name in names]


def _binary(name: str, *, null: bool = False) -> "Column[bytes]":
    return Column(name, sa.LargeBinary, nullable=null)


def _foreign_key(name: str, target: str, *, null: bool = False, **options: Any) -> "Column[Any]":
    """Return a column that refers to the key of another table and has the same type."""
    kind = Text if target.partition(".")[0] in _TEXT_KEYED else BigInteger
    return Column(name, kind, sa.ForeignKey(target), nullable=null, **options)


_TEXT_KEYED = ("batches", "requests", "tokens", "webhooks")


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _index_where(condition: str, name: str, *columns: "Column[Any]", unique: bool = False) -> None:
    where = text(condition)
    Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


def _table(name: str, *parts: Any) -> Table:
    """Return a table made from columns, lists of columns, constraints and indexes."""
    flat = [column for part in parts for column in (part if isinstance(part, list) else [part])]
    return Table(name, metadata, *flat)


meta = _table("meta", _text_key("key"), _texts("value"))

models = _table(
    "models",
    _row_number(),
    _texts("tenant", "name"),
    _texts("folder", unique=True),
    _texts("dataset", "method"),
    _integers("slots"),
    _texts("preprocessing", "releases"),
    _integers("created_at"),
    _texts("trusted"),
    Column("origin", Text, nullable=False, server_default=text("'own'")),
    sa.UniqueConstraint("tenant", "name"),
)

batches = _table(
    "batches",
    _text_key("id"),
    _foreign_key("model_id", "models.id"),
    _texts("kind"),
    _integers("parent_id"),
    _texts("state"),
    _integers("created_at"),
    _texts("reason"),
    _integers("fence"),
    _texts("training_key", "beacon", null=True),
    _one_of("kind", "erase", "retrain"),
    _one_of("state", "open", "published", "certified", "purged", "abandoned"),
)
_index_where("state = 'open'", "one_open_batch_per_model", batches.c.model_id, unique=True)

versions = _table(
    "versions",
    _row_number(),
    _foreign_key("model_id", "models.id"),
    _integers("number"),
    _foreign_key("parent_id", "versions.id", null=True, unique=True),
    _foreign_key("batch_id", "batches.id", null=True, unique=True),
    Column("sequence", BigInteger, unique=True),
    _texts("model_blob", "rows_blob", "ids_blob", "vault_blob"),
    _texts("monitor_blob", null=True),
    _texts("epoch_key", "root"),
    _integers("live"),
    _texts("facts"),
    _integers("published_at"),
    _integers("certified_at", null=True),
    _texts("checkpoint_before", null=True),
    _integers("purged_at", null=True),
    sa.UniqueConstraint("model_id", "number"),
)

heads = _table(
    "heads",
    _foreign_key("model_id", "models.id", primary_key=True),
    _foreign_key("version_id", "versions.id"),
    _integers("fence", default=0),
    _texts("owner", null=True),
    _integers("lease_until", default=0),
)

requests = _table(
    "requests",
    _text_key("id"),
    _texts("tenant"),
    _foreign_key("model_id", "models.id"),
    _texts("state", "regime", "ground"),
    _integers("received_at"),
    _texts("due_on"),
    _texts("extended_to", null=True),
    _texts("key_tag", "body_tag"),
    _binary("sealed", null=True),
    _texts("intake_key", null=True),
    _texts("nonce"),
    _integers("n_ids", "n_rows"),
    _foreign_key("batch_id", "batches.id", null=True),
    _foreign_key("duplicate_of", "requests.id", null=True),
    _texts("hold_ground", null=True),
    _integers("hold_until", null=True),
    _integers("tries", "not_before", default=0),
    _integers("paused_at", null=True),
    _integers("paused_seconds", default=0),
    _texts("reason", null=True),
    _integers("recipients", "closed_at", null=True),
    _texts("filed_by", "verified_by", "receipt_key", null=True),
    _binary("receipt", null=True),
    Column("last_day", Text, sa.Computed("coalesce(extended_to, due_on)", persisted=True)),
    sa.UniqueConstraint("tenant", "key_tag"),
    Index(None, "model_id", "state"),
    Index(None, "batch_id"),
    Index(None, "duplicate_of"),
    Index(None, "intake_key"),
)
_index_where("body_tag <> ''", "requests_to_forget", requests.c.closed_at)

# Lists of requests are read along one of these indexes. All columns that can be filtered by are in
# the index, so that rows which do not match are never looked up.
_by_due = [requests.c[name] for name in ("last_day", "received_at", "id", *LISTED_BY)]
_newest = [requests.c[name] for name in ("received_at", "id", *LISTED_BY, "last_day")]
Index("requests_by_due", *_by_due)
Index("requests_newest", *_newest)
# Most requests of an old ledger are closed; overdue requests are searched among open requests.
_index_where("closed_at IS NULL", "requests_open", *_by_due)

allowed_moves = _table("allowed_moves", _text_key("before", "after"))

# One row for each person and each request that names them. `owner` marks the request that erases
# the person. The unique index ensures that at most one request does, even with concurrent writers.
blocked = _table(
    "blocked",
    _texts("tenant"),
    _foreign_key("model_id", "models.id", primary_key=True),
    _text_key("tag"),
    _foreign_key("request_id", "requests.id", primary_key=True),
    Column("owner", sa.Boolean, nullable=False),
    Index(None, "request_id"),
)
_index_where("owner", "one_owner_per_person", blocked.c.model_id, blocked.c.tag, unique=True)

# `about` is the opaque id of the request or batch of an event, for timelines; `era` counts the
# corrections of the clock.
events = _table(
    "events",
    _row_number(),
    _integers("at", "era"),
    _texts("kind"),
    _texts("about", null=True),
    _texts("body", "leaf"),
    Column("log_index", BigInteger, unique=True),
    Index(None, "about"),
    Index(None, "kind"),
    Index(None, "era", "at"),
)
_index_where("log_index IS NULL", "events_to_integrate", events.c.id)

log = _table(
    "log",
    Column("id", sa.Integer, primary_key=True),
    _integers("size"),
    _texts("frontier"),
    CheckConstraint("id = 1", name="one"),
)

checkpoints = _table("checkpoints", _sequence_key("size"), _texts("root", "note"), _integers("at"))

certificates = _table(
    "certificates",
    _sequence_key(),
    _texts("id", unique=True),
    _foreign_key("version_id", "versions.id", unique=True),
    _binary("envelope"),
    _integers("at"),
)

purges = _table(
    "purges",
    _sequence_key(),
    _texts("id", unique=True),
    _foreign_key("batch_id", "batches.id", unique=True),
    _binary("envelope"),
    _integers("at"),
)

purge_steps = _table(
    "purge_steps",
    _foreign_key("batch_id", "batches.id", primary_key=True),
    _text_key("step"),
    _texts("state"),
    _texts("evidence", null=True),
    _integers("at"),
)

intake_keys = _table(
    "intake_keys", _text_key("id"), _integers("created_at"), _integers("destroyed_at", null=True)
)

pins = _table(
    "pins",
    _text_key("id"),
    _foreign_key("version_id", "versions.id"),
    _texts("owner"),
    _integers("until"),
    Index(None, "version_id"),
)

stores = _table(
    "stores",
    _text_key("name"),
    _texts("kind", "path", "owner", "scope"),
    _integers("days", null=True),
)

# The tables below belong to the service: permissions, webhooks and jobs. They contain no data about
# data subjects.
tokens = _table(
    "tokens",
    _text_key("id"),
    _texts("hash", unique=True),
    _texts("name", "role", "scopes"),
    _texts("tenant", null=True),
    _integers("created_at", "expires_at"),
    _integers("revoked_at", null=True),
    _texts("created_by", null=True),
)

sessions = _table(
    "sessions",
    _text_key("id"),
    _foreign_key("token_id", "tokens.id"),
    _texts("csrf"),
    _integers("created_at", "expires_at", "last_seen_at"),
    Index(None, "token_id"),
)

webhooks = _table(
    "webhooks",
    _text_key("id"),
    _texts("tenant", null=True),
    _texts("url", "events"),
    _integers("created_at"),
    _texts("created_by", null=True),
    _integers("cursor", default=0),
    _integers("disabled_at", null=True),
)

deliveries = _table(
    "deliveries",
    _text_key("id"),
    _foreign_key("webhook_id", "webhooks.id"),
    _texts("kind", "about", "body"),
    _integers("created_at"),
    _integers("tries", "not_before", default=0),
    _integers("delivered_at", "given_up_at", "last_status", null=True),
    sa.UniqueConstraint("webhook_id", "kind", "about"),
)
_waiting = "delivered_at IS NULL AND given_up_at IS NULL"
_index_where(_waiting, "deliveries_to_try", deliveries.c.not_before)

jobs = _table(
    "jobs",
    _text_key("id"),
    _texts("kind"),
    _texts("tenant", "model", null=True),
    _texts("asked", "state"),
    _integers("created_at"),
    _texts("created_by", null=True),
    _integers("started_at", "finished_at", null=True),
    _texts("progress"),
    _texts("result", "owner", null=True),
    _integers("lease_until", default=0),
    _one_of("state", "queued", "running", "done", "failed"),
    Index(None, "state", "created_at"),
)

actions = _table(
    "actions",
    _row_number(),
    _integers("at"),
    _texts("token_id", "action"),
    _texts("about", null=True),
)
