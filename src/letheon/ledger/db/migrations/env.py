"""Alembic environment: runs the migrations on the given connection."""

from alembic import context

from letheon.ledger.tables import metadata

if __name__ == "env_py":  # the name under which Alembic runs this file; other imports do nothing
    context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
    with context.begin_transaction():
        context.run_migrations()
