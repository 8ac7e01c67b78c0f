"""The desk: who asked and who vouched, approval, receipts, tokens, webhooks and jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# A request of many rows waits in `verified` for an approval, as may one that inherits people.
_MOVES = ">verified verified>rejected verified>cancelled duplicate>verified"


def upgrade() -> None:
    """Add columns, tables and moves; what is there stays as it is."""
    _add_columns()
    _create_tokens()
    _create_sessions()
    _create_webhooks()
    _create_deliveries()
    _create_jobs()
    _create_actions()
    _add_moves()
    if op.get_bind().dialect.name == "sqlite":
        _sqlite_triggers()
    else:
        _postgresql_triggers()
        # Without figures on the new columns a search reads a whole index.
        op.execute("ANALYZE requests")


def downgrade() -> None:
    """Refuse: a ledger is never taken back."""
    raise NotImplementedError("the tables of the desk cannot be removed")


def _add_columns() -> None:
    op.add_column("requests", sa.Column("filed_by", sa.Text(), nullable=True))
    op.add_column("requests", sa.Column("verified_by", sa.Text(), nullable=True))
    op.add_column("requests", sa.Column("receipt_key", sa.Text(), nullable=True))
    op.add_column("requests", sa.Column("receipt", sa.LargeBinary(), nullable=True))
    # SQLite can add a column that is worked out when it is read, PostgreSQL one that is stored.
    is_stored = op.get_bind().dialect.name == "postgresql"
    last_day = sa.Computed("coalesce(extended_to, due_on)", persisted=is_stored)
    op.add_column("requests", sa.Column("last_day", sa.Text(), last_day, nullable=True))
    filters = ["tenant", "model_id", "state", "regime", "filed_by"]
    by_due = ["last_day", "received_at", "id", *filters]
    newest = ["received_at", "id", *filters, "last_day"]
    op.create_index("requests_by_due", "requests", by_due, unique=False)
    op.create_index("requests_newest", "requests", newest, unique=False)
    op.create_index(
        "requests_open",
        "requests",
        by_due,
        unique=False,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )


def _add_moves() -> None:
    pairs = [pair.partition(">") for pair in _MOVES.split()]
    moves = sa.table("allowed_moves", sa.column("before", sa.Text), sa.column("after", sa.Text))
    op.bulk_insert(moves, [{"before": before, "after": after} for before, _, after in pairs])


def _changed_hands(differs: str) -> str:
    """Return when a change of a request is refused: the second pair of eyes depends on it."""
    verifier = f"OLD.verified_by IS NOT NULL AND OLD.verified_by {differs} NEW.verified_by"
    return f"(OLD.filed_by {differs} NEW.filed_by OR ({verifier}))"


def _sqlite_triggers() -> None:
    def refuse(name: str, when: str, condition: str, text: str) -> None:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} FOR EACH ROW WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, 'letheon: {text}'); END"
        )

    hands = _changed_hands("IS NOT")
    refuse("fixed_hands", "UPDATE ON requests", hands, "who filed and who vouched is fixed")
    refuse("actions_stay", "UPDATE ON actions", "true", "actions never change")
    refuse("actions_kept", "DELETE ON actions", "true", "actions are never removed")


def _postgresql_triggers() -> None:
    op.execute(
        "CREATE FUNCTION letheon_hands() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN "
        f"IF {_changed_hands('IS DISTINCT FROM')} THEN "
        "RAISE EXCEPTION 'letheon: who filed and who vouched is fixed' USING ERRCODE = '23514'; "
        "END IF; RETURN NEW; END $body$"
    )
    op.execute(
        "CREATE TRIGGER fixed_hands BEFORE UPDATE ON requests "
        "FOR EACH ROW EXECUTE FUNCTION letheon_hands()"
    )
    op.execute(
        "CREATE TRIGGER actions_stay BEFORE UPDATE OR DELETE ON actions "
        "FOR EACH ROW EXECUTE FUNCTION letheon_never()"
    )
    op.execute(
        "CREATE TRIGGER actions_whole BEFORE TRUNCATE ON actions "
        "FOR EACH STATEMENT EXECUTE FUNCTION letheon_never()"
    )


def _create_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_tokens_hash")),
    )


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("csrf", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_sessions_token_id_tokens")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_token_id"), "sessions", ["token_id"], unique=False)


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.Column("cursor", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("disabled_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )


def _create_deliveries() -> None:
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("about", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("not_before", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("given_up_at", sa.BigInteger(), nullable=True),
        sa.Column("last_status", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_deliveries_webhook_id_webhooks")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint(
            "webhook_id", "kind", "about", name=op.f("uq_deliveries_webhook_id_kind_about")
        ),
    )
    op.create_index(
        "deliveries_to_try",
        "deliveries",
        ["not_before"],
        unique=False,
        sqlite_where=sa.text("delivered_at IS NULL AND given_up_at IS NULL"),
        postgresql_where=sa.text("delivered_at IS NULL AND given_up_at IS NULL"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed')", name=op.f("ck_jobs_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_state_created_at"), "jobs", ["state", "created_at"], unique=False)


def _create_actions() -> None:
    op.create_table(
        "actions",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("about", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_actions")),
    )
