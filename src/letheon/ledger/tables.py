"""The tables of a ledger, as SQLAlchemy sees them.

Times are whole seconds since 1970 (UTC), days are text ``YYYY-MM-DD``, digests and random ids are
lower-case hex. Nothing here holds a person's id in the clear: bodies are sealed, tags are keyed.
The first migration creates them from this metadata.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

REVISION = "0100"
KNOWN_REVISIONS = ("0002", "0003", REVISION)
LISTED_BY = ("tenant", "model_id", "state", "regime", "filed_by")
SCHEMA = "letheon"  # of a PostgreSQL database, where other programs may have tables too

metadata = MetaData(
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
    kind: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")
    return Column("id", kind, primary_key=True, autoincrement=True)


def _whole(name: str, *, null: bool = False, default: int | None = None) -> "Column[int]":
    start = None if default is None else text(str(default))
    return Column(name, BigInteger, nullable=null, server_default=start)


def _words(name: str, *, null: bool = False) -> "Column[str]":
    return Column(name, Text, nullable=null)


def _of(name: str, target: str, *, null: bool = False, primary: bool = False) -> "Column[int]":
    return Column(name, BigInteger, ForeignKey(target), nullable=null, primary_key=primary)


meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    _words("value"),
)

models = Table(
    "models",
    metadata,
    _number(),
    _words("tenant"),
    _words("name"),
    Column("folder", Text, nullable=False, unique=True),
    _words("dataset"),
    _words("method"),
    _whole("slots"),
    _words("preprocessing"),
    _words("releases"),
    _whole("created_at"),
    _words("trusted"),
    Column("origin", Text, nullable=False, server_default=text("'own'")),
    UniqueConstraint("tenant", "name"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    _of("model_id", "models.id"),
    _words("kind"),
    _whole("parent_id"),
    _words("state"),
    _whole("created_at"),
    _words("reason"),
    _whole("fence"),
    _words("training_key", null=True),
    _words("beacon", null=True),
    CheckConstraint("kind IN ('erase', 'retrain')", name="kind"),
    CheckConstraint(
        "state IN ('open', 'published', 'certified', 'purged', 'abandoned')", name="state"
    ),
)
Index(
    "one_open_batch_per_model",
    batches.c.model_id,
    unique=True,
    sqlite_where=text("state = 'open'"),
    postgresql_where=text("state = 'open'"),
)

versions = Table(
    "versions",
    metadata,
    _number(),
    _of("model_id", "models.id"),
    _whole("number"),
    Column("parent_id", BigInteger, ForeignKey("versions.id"), unique=True),
    Column("batch_id", Text, ForeignKey("batches.id"), unique=True),
    Column("sequence", BigInteger, unique=True),
    _words("model_blob"),
    _words("rows_blob"),
    _words("ids_blob"),
    _words("vault_blob"),
    _words("monitor_blob", null=True),
    _words("epoch_key"),
    _words("root"),
    _whole("live"),
    _words("facts"),
    _whole("published_at"),
    _whole("certified_at", null=True),
    _words("checkpoint_before", null=True),
    _whole("purged_at", null=True),
    UniqueConstraint("model_id", "number"),
)

heads = Table(
    "heads",
    metadata,
    _of("model_id", "models.id", primary=True),
    _of("version_id", "versions.id"),
    _whole("fence", default=0),
    _words("owner", null=True),
    _whole("lease_until", default=0),
)

requests = Table(
    "requests",
    metadata,
    Column("id", Text, primary_key=True),
    _words("tenant"),
    _of("model_id", "models.id"),
    _words("state"),
    _words("regime"),
    _words("ground"),
    _whole("received_at"),
    _words("due_on"),
    _words("extended_to", null=True),
    _words("key_tag"),
    _words("body_tag"),
    Column("sealed", LargeBinary, nullable=True),
    _words("intake_key", null=True),
    _words("nonce"),
    _whole("n_ids"),
    _whole("n_rows"),
    Column("batch_id", Text, ForeignKey("batches.id")),
    Column("duplicate_of", Text, ForeignKey("requests.id")),
    _words("hold_ground", null=True),
    _whole("hold_until", null=True),
    _whole("tries", default=0),
    _whole("not_before", default=0),
    _whole("paused_at", null=True),
    _whole("paused_seconds", default=0),
    _words("reason", null=True),
    _whole("recipients", null=True),
    _whole("closed_at", null=True),
    _words("filed_by", null=True),
    _words("verified_by", null=True),
    _words("receipt_key", null=True),
    Column("receipt", LargeBinary, nullable=True),
    Column("last_day", Text, Computed("coalesce(extended_to, due_on)", persisted=True)),
    UniqueConstraint("tenant", "key_tag"),
    Index(None, "model_id", "state"),
    Index(None, "batch_id"),
    Index(None, "duplicate_of"),
    Index(None, "intake_key"),
)
Index(
    "requests_to_forget",
    requests.c.closed_at,
    sqlite_where=text("body_tag <> ''"),
    postgresql_where=text("body_tag <> ''"),
)

# Lists of requests are read along one of these, whatever they are filtered by: all columns that
# can be asked for are in the index, so that rows which do not match are never looked up.
Index(
    "requests_by_due",
    *(requests.c[name] for name in ("last_day", "received_at", "id", *LISTED_BY)),
)
Index(
    "requests_newest", *(requests.c[name] for name in ("received_at", "id", *LISTED_BY, "last_day"))
)
# Most requests of an old ledger are closed; what is late is found among the others.
Index(
    "requests_open",
    *(requests.c[name] for name in ("last_day", "received_at", "id", *LISTED_BY)),
    sqlite_where=text("closed_at IS NULL"),
    postgresql_where=text("closed_at IS NULL"),
)

allowed_moves = Table(
    "allowed_moves",
    metadata,
    Column("before", Text, primary_key=True),
    Column("after", Text, primary_key=True),
)

# One row for each person and each request that names them. `owner` marks the request that erases
# that person: there is one at most, so that one person is erased by one request, whoever races.
blocked = Table(
    "blocked",
    metadata,
    _words("tenant"),
    _of("model_id", "models.id", primary=True),
    Column("tag", Text, primary_key=True),
    Column("request_id", Text, ForeignKey("requests.id"), primary_key=True),
    Column("owner", Boolean, nullable=False),
    Index(None, "request_id"),
)
Index(
    "one_owner_per_person",
    blocked.c.model_id,
    blocked.c.tag,
    unique=True,
    sqlite_where=text("owner"),
    postgresql_where=text("owner"),
)

# `about` is the opaque id of the request or batch that an event belongs to, for timelines; `era`
# counts the corrections of the clock.
events = Table(
    "events",
    metadata,
    _number(),
    _whole("at"),
    _whole("era"),
    _words("kind"),
    _words("about", null=True),
    _words("body"),
    _words("leaf"),
    Column("log_index", BigInteger, unique=True),
    Index(None, "about"),
    Index(None, "kind"),
    Index(None, "era", "at"),
)
Index(
    "events_to_integrate",
    events.c.id,
    sqlite_where=text("log_index IS NULL"),
    postgresql_where=text("log_index IS NULL"),
)

log = Table(
    "log",
    metadata,
    Column("id", Integer, primary_key=True),
    _whole("size"),
    _words("frontier"),
    CheckConstraint("id = 1", name="one"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("size", BigInteger, primary_key=True, autoincrement=False),
    _words("root"),
    _words("note"),
    _whole("at"),
)

certificates = Table(
    "certificates",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("version_id", BigInteger, ForeignKey("versions.id"), nullable=False, unique=True),
    Column("envelope", LargeBinary, nullable=False),
    _whole("at"),
)

purges = Table(
    "purges",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("batch_id", Text, ForeignKey("batches.id"), nullable=False, unique=True),
    Column("envelope", LargeBinary, nullable=False),
    _whole("at"),
)

purge_steps = Table(
    "purge_steps",
    metadata,
    Column("batch_id", Text, ForeignKey("batches.id"), primary_key=True),
    Column("step", Text, primary_key=True),
    _words("state"),
    _words("evidence", null=True),
    _whole("at"),
)

intake_keys = Table(
    "intake_keys",
    metadata,
    Column("id", Text, primary_key=True),
    _whole("created_at"),
    _whole("destroyed_at", null=True),
)

pins = Table(
    "pins",
    metadata,
    Column("id", Text, primary_key=True),
    _of("version_id", "versions.id"),
    _words("owner"),
    _whole("until"),
    Index(None, "version_id"),
)

stores = Table(
    "stores",
    metadata,
    Column("name", Text, primary_key=True),
    _words("kind"),
    _words("path"),
    _words("owner"),
    _words("scope"),
    _whole("days", null=True),
)

# What follows belongs to the desk: who may do what there, and what it was asked to do. Nothing in
# these tables is about a person who asks to be erased.
tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hash", Text, nullable=False, unique=True),
    _words("name"),
    _words("role"),
    _words("scopes"),
    _words("tenant", null=True),
    _whole("created_at"),
    _whole("expires_at"),
    _whole("revoked_at", null=True),
    _words("created_by", null=True),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("token_id", Text, ForeignKey("tokens.id"), nullable=False),
    _words("csrf"),
    _whole("created_at"),
    _whole("expires_at"),
    _whole("last_seen_at"),
    Index(None, "token_id"),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", Text, primary_key=True),
    _words("tenant", null=True),
    _words("url"),
    _words("events"),
    _whole("created_at"),
    _words("created_by", null=True),
    _whole("cursor", default=0),
    _whole("disabled_at", null=True),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", Text, primary_key=True),
    Column("webhook_id", Text, ForeignKey("webhooks.id"), nullable=False),
    _words("kind"),
    _words("about"),
    _words("body"),
    _whole("created_at"),
    _whole("tries", default=0),
    _whole("not_before", default=0),
    _whole("delivered_at", null=True),
    _whole("given_up_at", null=True),
    _whole("last_status", null=True),
    UniqueConstraint("webhook_id", "kind", "about"),
)
Index(
    "deliveries_to_try",
    deliveries.c.not_before,
    sqlite_where=text("delivered_at IS NULL AND given_up_at IS NULL"),
    postgresql_where=text("delivered_at IS NULL AND given_up_at IS NULL"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    _words("kind"),
    _words("tenant", null=True),
    _words("model", null=True),
    _words("asked"),
    _words("state"),
    _whole("created_at"),
    _words("created_by", null=True),
    _whole("started_at", null=True),
    _whole("finished_at", null=True),
    _words("progress"),
    _words("result", null=True),
    _words("owner", null=True),
    _whole("lease_until", default=0),
    CheckConstraint("state IN ('queued', 'running', 'done', 'failed')", name="state"),
    Index(None, "state", "created_at"),
)

actions = Table(
    "actions",
    metadata,
    _number(),
    _whole("at"),
    _words("token_id"),
    _words("action"),
    _words("about", null=True),
)
