"""What Alembic runs: the migrations, on the connection that it was given."""

from alembic import context

from letheon.ledger.tables import metadata

if __name__ == "env_py":  # Alembic's name for this file; anybody else only imports it
    context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
    with context.begin_transaction():
        context.run_migrations()
