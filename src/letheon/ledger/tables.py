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


def _integer_columns(
    *names: str, null: bool = False, default: int | None = None
) -> "list[Column[int]]":
    start = None if default is None else text(str(default))
    return [Column(name, BigInteger, nullable=null, server_default=start) for name in names]


def _text_columns(
    *names: str, null: bool = False, unique: bool | None = None
) -> "list[Column[str]]":
    return [Column(name, Text, nullable=null, unique=unique) for name in names]


def _blob_column(name: str, *, null: bool = False) -> "Column[bytes]":
    return Column(name, sa.LargeBinary, nullable=null)


def _foreign_key(name: str, target: str, *, null: bool = False, **options: Any) -> "Column[Any]":
    """Return a column that refers to another table; text if that table has a text key."""
    kind = Text if target.partition(".")[0] in _TEXT_KEYED else BigInteger
    return Column(name, kind, sa.ForeignKey(target), nullable=null, **options)


_TEXT_KEYED = ("batches", "requests", "tokens", "webhooks")


def _allowed_values(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _index_where(condition: str, name: str, *columns: "Column[Any]", unique: bool = False) -> None:
    where = text(condition)
    Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


def _make_table(name: str, *parts: Any) -> Table:
    """Return a table from columns, lists of columns, constraints and indexes."""
    flat = [column for part in parts for column in (part if isinstance(part, list) else [part])]
    return Table(name, metadata, *flat)


meta = _make_table("meta", _text_key("key"), _text_columns("value"))

models = _make_table(
    "models",
    _row_number(),
    _text_columns("tenant", "name"),
    _text_columns("folder", unique=True),
    _text_columns("dataset", "method"),
    _integer_columns("slots"),
    _text_columns("preprocessing", "releases"),
    _integer_columns("created_at"),
    _text_columns("trusted"),
    Column("origin", Text, nullable=False, server_default=text("'own'")),
    sa.UniqueConstraint("tenant", "name"),
)

batches = _make_table(
    "batches",
    _text_key("id"),
    _foreign_key("model_id", "models.id"),
    _text_columns("kind"),
    _integer_columns("parent_id"),
    _text_columns("state"),
    _integer_columns("created_at"),
    _text_columns("reason"),
    _integer_columns("fence"),
    _text_columns("training_key", "beacon", null=True),
    _allowed_values("kind", "erase", "retrain"),
    _allowed_values("state", "open", "published", "certified", "purged", "abandoned"),
)
_index_where("state = 'open'", "one_open_batch_per_model", batches.c.model_id, unique=True)

versions = _make_table(
    "versions",
    _row_number(),
    _foreign_key("model_id", "models.id"),
    _integer_columns("number"),
    _foreign_key("parent_id", "versions.id", null=True, unique=True),
    _foreign_key("batch_id", "batches.id", null=True, unique=True),
    Column("sequence", BigInteger, unique=True),
    _text_columns("model_blob", "rows_blob", "ids_blob", "vault_blob"),
    _text_columns("monitor_blob", null=True),
    _text_columns("epoch_key", "root"),
    _integer_columns("live"),
    _text_columns("facts"),
    _integer_columns("published_at"),
    _integer_columns("certified_at", null=True),
    _text_columns("checkpoint_before", null=True),
    _integer_columns("purged_at", null=True),
    sa.UniqueConstraint("model_id", "number"),
)

heads = _make_table(
    "heads",
    _foreign_key("model_id", "models.id", primary_key=True),
    _foreign_key("version_id", "versions.id"),
    _integer_columns("fence", default=0),
    _text_columns("owner", null=True),
    _integer_columns("lease_until", default=0),
)

requests = _make_table(
    "requests",
    _text_key("id"),
    _text_columns("tenant"),
    _foreign_key("model_id", "models.id"),
    _text_columns("state", "regime", "ground"),
    _integer_columns("received_at"),
    _text_columns("due_on"),
    _text_columns("extended_to", null=True),
    _text_columns("key_tag", "body_tag"),
    _blob_column("sealed", null=True),
    _text_columns("intake_key", null=True),
    _text_columns("nonce"),
    _integer_columns("n_ids", "n_rows"),
    _foreign_key("batch_id", "batches.id", null=True),
    _foreign_key("duplicate_of", "requests.id", null=True),
    _text_columns("hold_ground", null=True),
    _integer_columns("hold_until", null=True),
    _integer_columns("tries", "not_before", default=0),
    _integer_columns("paused_at", null=True),
    _integer_columns("paused_seconds", default=0),
    _text_columns("reason", null=True),
    _integer_columns("recipients", "closed_at", null=True),
    _text_columns("filed_by", "verified_by", "receipt_key", null=True),
    _blob_column("receipt", null=True),
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
# Most requests of an old ledger are closed; overdue ones are searched among the open ones.
_index_where("closed_at IS NULL", "requests_open", *_by_due)

allowed_moves = _make_table("allowed_moves", _text_key("before", "after"))

# One row for each person and each request that names them. `owner` marks the request that erases
# the person. The unique index ensures that at most one request does, even with concurrent writers.
blocked = _make_table(
    "blocked",
    _text_columns("tenant"),
    _foreign_key("model_id", "models.id", primary_key=True),
    _text_key("tag"),
    _foreign_key("request_id", "requests.id", primary_key=True),
    Column("owner", sa.Boolean, nullable=False),
    Index(None, "request_id"),
)
_index_where("owner", "one_owner_per_person", blocked.c.model_id, blocked.c.tag, unique=True)

# `about` is the opaque id of the request or batch of an event, for timelines; `era` counts the
# corrections of the clock.
events = _make_table(
    "events",
    _row_number(),
    _integer_columns("at", "era"),
    _text_columns("kind"),
    _text_columns("about", null=True),
    _text_columns("body", "leaf"),
    Column("log_index", BigInteger, unique=True),
    Index(None, "about"),
    Index(None, "kind"),
    Index(None, "era", "at"),
)
_index_where("log_index IS NULL", "events_to_integrate", events.c.id)

log = _make_table(
    "log",
    Column("id", sa.Integer, primary_key=True),
    _integer_columns("size"),
    _text_columns("frontier"),
    CheckConstraint("id = 1", name="one"),
)

checkpoints = _make_table(
    "checkpoints", _sequence_key("size"), _text_columns("root", "note"), _integer_columns("at")
)

certificates = _make_table(
    "certificates",
    _sequence_key(),
    _text_columns("id", unique=True),
    _foreign_key("version_id", "versions.id", unique=True),
    _blob_column("envelope"),
    _integer_columns("at"),
)

purges = _make_table(
    "purges",
    _sequence_key(),
    _text_columns("id", unique=True),
    _foreign_key("batch_id", "batches.id", unique=True),
    _blob_column("envelope"),
    _integer_columns("at"),
)

purge_steps = _make_table(
    "purge_steps",
    _foreign_key("batch_id", "batches.id", primary_key=True),
    _text_key("step"),
    _text_columns("state"),
    _text_columns("evidence", null=True),
    _integer_columns("at"),
)

intake_keys = _make_table(
    "intake_keys",
    _text_key("id"),
    _integer_columns("created_at"),
    _integer_columns("destroyed_at", null=True),
)

pins = _make_table(
    "pins",
    _text_key("id"),
    _foreign_key("version_id", "versions.id"),
    _text_columns("owner"),
    _integer_columns("until"),
    Index(None, "version_id"),
)

stores = _make_table(
    "stores",
    _text_key("name"),
    _text_columns("kind", "path", "owner", "scope"),
    _integer_columns("days", null=True),
)

# The tables below belong to the service: permissions, webhooks and jobs. They contain no data about
# data subjects.
tokens = _make_table(
    "tokens",
    _text_key("id"),
    _text_columns("hash", unique=True),
    _text_columns("name", "role", "scopes"),
    _text_columns("tenant", null=True),
    _integer_columns("created_at", "expires_at"),
    _integer_columns("revoked_at", null=True),
    _text_columns("created_by", null=True),
)

sessions = _make_table(
    "sessions",
    _text_key("id"),
    _foreign_key("token_id", "tokens.id"),
    _text_columns("csrf"),
    _integer_columns("created_at", "expires_at", "last_seen_at"),
    Index(None, "token_id"),
)

webhooks = _make_table(
    "webhooks",
    _text_key("id"),
    _text_columns("tenant", null=True),
    _text_columns("url", "events"),
    _integer_columns("created_at"),
    _text_columns("created_by", null=True),
    _integer_columns("cursor", default=0),
    _integer_columns("disabled_at", null=True),
)

deliveries = _make_table(
    "deliveries",
    _text_key("id"),
    _foreign_key("webhook_id", "webhooks.id"),
    _text_columns("kind", "about", "body"),
    _integer_columns("created_at"),
    _integer_columns("tries", "not_before", default=0),
    _integer_columns("delivered_at", "given_up_at", "last_status", null=True),
    sa.UniqueConstraint("webhook_id", "kind", "about"),
)
_waiting = "delivered_at IS NULL AND given_up_at IS NULL"
_index_where(_waiting, "deliveries_to_try", deliveries.c.not_before)

jobs = _make_table(
    "jobs",
    _text_key("id"),
    _text_columns("kind"),
    _text_columns("tenant", "model", null=True),
    _text_columns("asked", "state"),
    _integer_columns("created_at"),
    _text_columns("created_by", null=True),
    _integer_columns("started_at", "finished_at", null=True),
    _text_columns("progress"),
    _text_columns("result", "owner", null=True),
    _integer_columns("lease_until", default=0),
    _allowed_values("state", "queued", "running", "done", "failed"),
    Index(None, "state", "created_at"),
)

actions = _make_table(
    "actions",
    _row_number(),
    _integer_columns("at"),
    _text_columns("token_id", "action"),
    _text_columns("about", null=True),
)
