"""Create the tables of a ledger from the metadata, and the triggers that protect them."""

from collections.abc import Iterator
from typing import NamedTuple

from alembic import op
from sqlalchemy import insert

from letheon.ledger.requests.states import ALLOWED
from letheon.ledger.tables import allowed_moves, log, meta, metadata

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

_FIXED = ("id", "tenant", "model_id", "regime", "ground", "received_at")
_TAGS = ("key_tag", "body_tag", "nonce")
_EVENT = ("id", "at", "era", "kind", "about", "body", "leaf")
_FOREVER = ("certificates", "purges", "checkpoints", "allowed_moves", "actions")


class _Trigger(NamedTuple):
    """Database trigger that rejects a change of rows."""

    name: str
    change: str
    table: str
    condition: str
    reason: str


def upgrade() -> None:
    """Create all tables and triggers."""
    connection = op.get_bind()
    metadata.create_all(connection)
    moves = [{"before": before, "after": after} for before, after in sorted(ALLOWED)]
    connection.execute(insert(allowed_moves), moves)
    connection.execute(insert(meta).values(key="intake_key", value=""))
    connection.execute(insert(log).values(id=1, size=0, frontier="0"))
    if connection.dialect.name == "sqlite":
        statements = _sqlite_triggers()
    else:
        statements = _postgresql_triggers()
    for statement in statements:
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Raise `NotImplementedError`, because a ledger cannot be downgraded."""
    raise NotImplementedError("a ledger cannot be downgraded, because this would remove its tables")


def _rules(moves: str, differs: str) -> Iterator[_Trigger]:
    """Yield the triggers, in the SQL of SQLite or PostgreSQL.

    `moves` and `differs` are the parts that differ between the two databases.
    """
    unknown = f"NOT EXISTS (SELECT 1 FROM {moves} WHERE before = {{}} AND after = NEW.state)"
    yield _Trigger("first_state", "INSERT", "requests", unknown.format("''"), "no first state")
    yield _Trigger(
        "next_state",
        "UPDATE OF state",
        "requests",
        f"OLD.state <> NEW.state AND {unknown.format('OLD.state')}",
        "this state cannot follow that one",
    )
    # Tags may only be cleared, after the request is closed.
    forgotten = "(OLD.closed_at IS NOT NULL AND NEW.body_tag = '' AND NEW.nonce = '')"
    fixed = f"{_differ(_FIXED, differs)} OR ({_differ(_TAGS, differs)} AND NOT {forgotten})"
    yield _Trigger(
        "fixed_columns", "UPDATE", "requests", fixed, "this column of a request is fixed"
    )
    # Approval by a second person depends on these columns.
    verifier = f"OLD.verified_by IS NOT NULL AND OLD.verified_by {differs} NEW.verified_by"
    hands = f"(OLD.filed_by {differs} NEW.filed_by OR ({verifier}))"
    yield _Trigger("fixed_hands", "UPDATE", "requests", hands, "who filed and who vouched is fixed")
    early = "OLD.closed_at IS NULL"
    yield _Trigger("no_early_end", "DELETE", "requests", early, "a request is open")
    moved = f"OLD.log_index IS NOT NULL OR NEW.log_index IS NULL OR {_differ(_EVENT, differs)}"
    yield _Trigger("events_stay", "UPDATE", "events", moved, "an event never changes")
    yield _Trigger("events_kept", "DELETE", "events", "true", "an event is never removed")
    for table in _FOREVER:
        yield _Trigger(f"{table}_stay", "UPDATE", table, "true", f"{table} never change")
        yield _Trigger(f"{table}_kept", "DELETE", table, "true", f"{table} are never removed")


def _differ(columns: tuple[str, ...], differs: str) -> str:
    return "(" + " OR ".join(f"OLD.{name} {differs} NEW.{name}" for name in columns) + ")"


def _sqlite_triggers() -> Iterator[str]:
    replaced = "EXISTS (SELECT 1 FROM {0} WHERE {1} = NEW.{1} AND {2})"
    rules = [
        *_rules("allowed_moves", "IS NOT"),
        # INSERT OR REPLACE fires no DELETE trigger.
        *(
            _Trigger(f"no_replaced_{table}", "INSERT", table, replaced.format(table, *rest), reason)
            for table, *rest, reason in (
                ("requests", "id", "true", "a request is never replaced"),
                ("events", "id", "true", "an event is never replaced"),
                ("certificates", "sequence", "envelope <> NEW.envelope", "one number, two texts"),
                ("purges", "sequence", "envelope <> NEW.envelope", "one number, two texts"),
                ("checkpoints", "size", "note <> NEW.note", "one size, two notes"),
            )
        ),
    ]
    for rule in rules:
        yield (
            f"CREATE TRIGGER {rule.name} BEFORE {rule.change} ON {rule.table} FOR EACH ROW "
            f"WHEN {rule.condition} BEGIN SELECT RAISE(ABORT, 'letheon: {rule.reason}'); END"
        )


def _postgresql_triggers() -> Iterator[str]:
    # A trigger runs with the search path of the writing session.
    rules = [
        *_rules("letheon.allowed_moves", "IS DISTINCT FROM"),
        *(
            _Trigger(f"{table}_whole", "TRUNCATE", table, "true", f"{table} are kept")
            for table in ("requests", "events", *_FOREVER)
        ),
    ]
    for rule in rules:
        gives = "OLD" if rule.change == "DELETE" else "NEW"
        yield (
            f"CREATE FUNCTION letheon_{rule.name}() RETURNS trigger LANGUAGE plpgsql AS $body$ "
            f"BEGIN IF {rule.condition} THEN RAISE EXCEPTION 'letheon: {rule.reason}' "
            f"USING ERRCODE = '23514'; END IF; RETURN {gives}; END $body$"
        )
        each = "STATEMENT" if rule.change == "TRUNCATE" else "ROW"
        yield (
            f"CREATE TRIGGER {rule.name} BEFORE {rule.change} ON {rule.table} "
            f"FOR EACH {each} EXECUTE FUNCTION letheon_{rule.name}()"
        )
