"""The first tables, and the triggers that guard them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# As it was then.
_MOVES = """
>received >queued
received>verified received>rejected received>cancelled
verified>queued verified>duplicate
queued>applying queued>duplicate queued>rejected queued>cancelled queued>on_hold
applying>applied applying>queued applying>retry_wait applying>stuck
retry_wait>queued retry_wait>stuck retry_wait>rejected retry_wait>cancelled retry_wait>on_hold
applied>certified certified>purging purging>purged purging>stuck purged>closed
duplicate>queued duplicate>closed duplicate>rejected duplicate>cancelled
on_hold>queued on_hold>rejected on_hold>cancelled
stuck>queued stuck>purging stuck>rejected stuck>cancelled
"""

_FIXED = (
    "id",
    "tenant",
    "model_id",
    "regime",
    "ground",
    "received_at",
)
_TAGS = ("key_tag", "body_tag", "nonce")
_FOREVER = ("certificates", "purges", "checkpoints", "allowed_moves")
_EVENT = ("id", "at", "era", "kind", "about", "body", "leaf")


def upgrade() -> None:
    """Make everything."""
    _tables()
    _first_rows()
    if op.get_bind().dialect.name == "sqlite":
        _sqlite_triggers()
    else:
        _postgresql_triggers()


def downgrade() -> None:
    """Refuse: a ledger is never taken back."""
    raise NotImplementedError("the first tables of a ledger cannot be removed")


def _first_rows() -> None:
    pairs = [pair.partition(">") for pair in _MOVES.split()]
    moves = sa.table("allowed_moves", sa.column("before", sa.Text), sa.column("after", sa.Text))
    op.bulk_insert(moves, [{"before": before, "after": after} for before, _, after in pairs])
    op.execute("INSERT INTO meta (key, value) VALUES ('intake_key', '')")
    op.execute("INSERT INTO log (id, size, frontier) VALUES (1, 0, '0')")


def _sqlite_triggers() -> None:
    def refuse(name: str, when: str, condition: str, text: str) -> None:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} FOR EACH ROW WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, 'letheon: {text}'); END"
        )

    unknown = "NOT EXISTS (SELECT 1 FROM allowed_moves WHERE before = {} AND after = NEW.state)"
    replaced = "EXISTS (SELECT 1 FROM {0} WHERE {1} = NEW.{1} AND {2})"
    refuse("first_state", "INSERT ON requests", unknown.format("''"), "no first state")
    refuse(
        "next_state",
        "UPDATE OF state ON requests",
        f"OLD.state <> NEW.state AND {unknown.format('OLD.state')}",
        "this state cannot follow that one",
    )
    fixed = _fixed("IS NOT")
    refuse("fixed_columns", "UPDATE ON requests", fixed, "this column of a request is fixed")
    refuse("no_early_end", "DELETE ON requests", "OLD.closed_at IS NULL", "a request is open")
    again = replaced.format("requests", "id", "true")
    refuse("no_replaced_request", "INSERT ON requests", again, "a request is never replaced")
    moved = f"OLD.log_index IS NOT NULL OR NEW.log_index IS NULL OR {_changed(_EVENT, 'IS NOT')}"
    refuse("events_stay", "UPDATE ON events", moved, "an event never changes")
    refuse("events_kept", "DELETE ON events", "true", "an event is never removed")
    again = replaced.format("events", "id", "true")
    refuse("no_replaced_event", "INSERT ON events", again, "an event is never replaced")
    for table in _FOREVER:
        refuse(f"{table}_stay", f"UPDATE ON {table}", "true", f"{table} never change")
        refuse(f"{table}_kept", f"DELETE ON {table}", "true", f"{table} are never removed")
    for table, other in (("certificates", "envelope"), ("purges", "envelope")):
        again = replaced.format(table, "sequence", f"{other} <> NEW.{other}")
        refuse(f"no_replaced_{table}", f"INSERT ON {table}", again, "one sequence, two contents")
    again = replaced.format("checkpoints", "size", "note <> NEW.note")
    refuse("no_replaced_checkpoints", "INSERT ON checkpoints", again, "one size, two notes")


def _postgresql_triggers() -> None:
    def function(name: str, condition: str, text: str, gives: str = "NEW") -> None:
        op.execute(
            f"CREATE FUNCTION letheon_{name}() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN "
            f"IF {condition} THEN RAISE EXCEPTION 'letheon: {text}' USING ERRCODE = '23514'; "
            f"END IF; RETURN {gives}; END $body$"
        )

    def trigger(name: str, when: str, table: str, function: str, each: str = "ROW") -> None:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} ON {table} "
            f"FOR EACH {each} EXECUTE FUNCTION letheon_{function}()"
        )

    # A trigger runs with the search path of the writing session.
    known = "SELECT 1 FROM letheon.allowed_moves WHERE before = {} AND after = NEW.state"
    unknown = f"NOT EXISTS ({known})"
    function("first_state", unknown.format("''"), "no first state")
    function(
        "next_state",
        f"OLD.state <> NEW.state AND {unknown.format('OLD.state')}",
        "this state cannot follow that one",
    )
    differs = "IS DISTINCT FROM"
    function("fixed", _fixed(differs), "this column of a request is fixed")
    function("open", "OLD.closed_at IS NULL", "a request is open", "OLD")
    moved = f"OLD.log_index IS NOT NULL OR NEW.log_index IS NULL OR {_changed(_EVENT, differs)}"
    function("event", moved, "an event never changes")
    function("never", "true", "these rows never change and are never removed", "NULL")
    trigger("first_state", "INSERT", "requests", "first_state")
    trigger("next_state", "UPDATE", "requests", "next_state")
    trigger("fixed_columns", "UPDATE", "requests", "fixed")
    trigger("no_early_end", "DELETE", "requests", "open")
    trigger("events_stay", "UPDATE", "events", "event")
    trigger("events_kept", "DELETE", "events", "never")
    for table in _FOREVER:
        trigger(f"{table}_stay", "UPDATE OR DELETE", table, "never")
    for table in ("requests", "events", *_FOREVER):
        trigger(f"{table}_whole", "TRUNCATE", table, "never", "STATEMENT")


def _fixed(differs: str) -> str:
    """Return when a change of a request is refused: tags may only be forgotten, once closed."""
    forgotten = "(OLD.closed_at IS NOT NULL AND NEW.body_tag = '' AND NEW.nonce = '')"
    return f"{_changed(_FIXED, differs)} OR ({_changed(_TAGS, differs)} AND NOT {forgotten})"


def _changed(columns: tuple[str, ...], differs: str) -> str:
    return "(" + " OR ".join(f"OLD.{name} {differs} NEW.{name}" for name in columns) + ")"


def _tables() -> None:
    _create_allowed_moves()
    _create_checkpoints()
    _create_events()
    _create_intake_keys()
    _create_log()
    _create_meta()
    _create_models()
    _create_stores()
    _create_batches()
    _create_purge_steps()
    _create_purges()
    _create_requests()
    _create_versions()
    _create_blocked()
    _create_certificates()
    _create_heads()
    _create_pins()


def _create_allowed_moves() -> None:
    op.create_table(
        "allowed_moves",
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("before", "after", name=op.f("pk_allowed_moves")),
    )


def _create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("root", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("size", name=op.f("pk_checkpoints")),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("era", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("about", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("leaf", sa.Text(), nullable=False),
        sa.Column("log_index", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sa.UniqueConstraint("log_index", name=op.f("uq_events_log_index")),
    )
    op.create_index(
        "events_to_integrate",
        "events",
        ["id"],
        unique=False,
        sqlite_where=sa.text("log_index IS NULL"),
        postgresql_where=sa.text("log_index IS NULL"),
    )
    op.create_index(op.f("ix_events_about"), "events", ["about"], unique=False)
    op.create_index(op.f("ix_events_era_at"), "events", ["era", "at"], unique=False)
    op.create_index(op.f("ix_events_kind"), "events", ["kind"], unique=False)


def _create_intake_keys() -> None:
    op.create_table(
        "intake_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("destroyed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_intake_keys")),
    )


def _create_log() -> None:
    op.create_table(
        "log",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("frontier", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_log_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log")),
    )


def _create_meta() -> None:
    op.create_table(
        "meta",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
    )


def _create_models() -> None:
    op.create_table(
        "models",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("dataset", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("slots", sa.BigInteger(), nullable=False),
        sa.Column("preprocessing", sa.Text(), nullable=False),
        sa.Column("releases", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("trusted", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("folder", name=op.f("uq_models_folder")),
        sa.UniqueConstraint("tenant", "name", name=op.f("uq_models_tenant_name")),
    )


def _create_stores() -> None:
    op.create_table(
        "stores",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("days", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_stores")),
    )


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("model_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("training_key", sa.Text(), nullable=True),
        sa.Column("beacon", sa.Text(), nullable=True),
        sa.CheckConstraint("kind IN ('erase', 'retrain')", name=op.f("ck_batches_kind")),
        sa.CheckConstraint(
            "state IN ('open', 'published', 'certified', 'purged', 'abandoned')",
            name=op.f("ck_batches_state"),
        ),
        sa.ForeignKeyConstraint(
            ["model_id"], ["models.id"], name=op.f("fk_batches_model_id_models")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index(
        "one_open_batch_per_model",
        "batches",
        ["model_id"],
        unique=True,
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )


def _create_purge_steps() -> None:
    op.create_table(
        "purge_steps",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_purge_steps_batch_id_batches")
        ),
        sa.PrimaryKeyConstraint("batch_id", "step", name=op.f("pk_purge_steps")),
    )


def _create_purges() -> None:
    op.create_table(
        "purges",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_purges_batch_id_batches")
        ),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_purges")),
        sa.UniqueConstraint("batch_id", name=op.f("uq_purges_batch_id")),
        sa.UniqueConstraint("id", name=op.f("uq_purges_id")),
    )


def _create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("model_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("regime", sa.Text(), nullable=False),
        sa.Column("ground", sa.Text(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("due_on", sa.Text(), nullable=False),
        sa.Column("extended_to", sa.Text(), nullable=True),
        sa.Column("key_tag", sa.Text(), nullable=False),
        sa.Column("body_tag", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("intake_key", sa.Text(), nullable=True),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("n_ids", sa.BigInteger(), nullable=False),
        sa.Column("n_rows", sa.BigInteger(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.Column("duplicate_of", sa.Text(), nullable=True),
        sa.Column("hold_ground", sa.Text(), nullable=True),
        sa.Column("hold_until", sa.BigInteger(), nullable=True),
        sa.Column("tries", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("not_before", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("paused_at", sa.BigInteger(), nullable=True),
        sa.Column("paused_seconds", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("recipients", sa.BigInteger(), nullable=True),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_requests_batch_id_batches")
        ),
        sa.ForeignKeyConstraint(
            ["duplicate_of"], ["requests.id"], name=op.f("fk_requests_duplicate_of_requests")
        ),
        sa.ForeignKeyConstraint(
            ["model_id"], ["models.id"], name=op.f("fk_requests_model_id_models")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
        sa.UniqueConstraint("tenant", "key_tag", name=op.f("uq_requests_tenant_key_tag")),
    )
    op.create_index(op.f("ix_requests_batch_id"), "requests", ["batch_id"], unique=False)
    op.create_index(op.f("ix_requests_duplicate_of"), "requests", ["duplicate_of"], unique=False)
    op.create_index(op.f("ix_requests_intake_key"), "requests", ["intake_key"], unique=False)
    op.create_index(
        "requests_to_forget",
        "requests",
        ["closed_at"],
        unique=False,
        sqlite_where=sa.text("body_tag <> ''"),
        postgresql_where=sa.text("body_tag <> ''"),
    )
    op.create_index(
        op.f("ix_requests_model_id_state"), "requests", ["model_id", "state"], unique=False
    )


def _create_versions() -> None:
    op.create_table(
        "versions",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("model_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("parent_id", sa.BigInteger(), nullable=True),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.Column("sequence", sa.BigInteger(), nullable=True),
        sa.Column("model_blob", sa.Text(), nullable=False),
        sa.Column("rows_blob", sa.Text(), nullable=False),
        sa.Column("ids_blob", sa.Text(), nullable=False),
        sa.Column("vault_blob", sa.Text(), nullable=False),
        sa.Column("monitor_blob", sa.Text(), nullable=True),
        sa.Column("epoch_key", sa.Text(), nullable=False),
        sa.Column("root", sa.Text(), nullable=False),
        sa.Column("live", sa.BigInteger(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("published_at", sa.BigInteger(), nullable=False),
        sa.Column("certified_at", sa.BigInteger(), nullable=True),
        sa.Column("checkpoint_before", sa.Text(), nullable=True),
        sa.Column("purged_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_versions_batch_id_batches")
        ),
        sa.ForeignKeyConstraint(
            ["model_id"], ["models.id"], name=op.f("fk_versions_model_id_models")
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"], ["versions.id"], name=op.f("fk_versions_parent_id_versions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_versions")),
        sa.UniqueConstraint("batch_id", name=op.f("uq_versions_batch_id")),
        sa.UniqueConstraint("model_id", "number", name=op.f("uq_versions_model_id_number")),
        sa.UniqueConstraint("parent_id", name=op.f("uq_versions_parent_id")),
        sa.UniqueConstraint("sequence", name=op.f("uq_versions_sequence")),
    )


def _create_blocked() -> None:
    op.create_table(
        "blocked",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("model_id", sa.BigInteger(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_id"], ["models.id"], name=op.f("fk_blocked_model_id_models")
        ),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.id"], name=op.f("fk_blocked_request_id_requests")
        ),
        sa.PrimaryKeyConstraint("model_id", "tag", "request_id", name=op.f("pk_blocked")),
    )
    op.create_index(op.f("ix_blocked_request_id"), "blocked", ["request_id"], unique=False)
    op.create_index(
        "one_owner_per_person",
        "blocked",
        ["model_id", "tag"],
        unique=True,
        sqlite_where=sa.text("owner"),
        postgresql_where=sa.text("owner"),
    )


def _create_certificates() -> None:
    op.create_table(
        "certificates",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("version_id", sa.BigInteger(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.id"], name=op.f("fk_certificates_version_id_versions")
        ),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_certificates")),
        sa.UniqueConstraint("id", name=op.f("uq_certificates_id")),
        sa.UniqueConstraint("version_id", name=op.f("uq_certificates_version_id")),
    )


def _create_heads() -> None:
    op.create_table(
        "heads",
        sa.Column("model_id", sa.BigInteger(), nullable=False),
        sa.Column("version_id", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_heads_model_id_models")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.id"], name=op.f("fk_heads_version_id_versions")
        ),
        sa.PrimaryKeyConstraint("model_id", name=op.f("pk_heads")),
    )


def _create_pins() -> None:
    op.create_table(
        "pins",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("version_id", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.id"], name=op.f("fk_pins_version_id_versions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pins")),
    )
    op.create_index(op.f("ix_pins_version_id"), "pins", ["version_id"], unique=False)
