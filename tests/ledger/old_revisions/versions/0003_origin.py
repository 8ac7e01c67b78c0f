"""Where a model came from: models from outside are computed in a sandbox only."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of models that are there, those with classes of the operator's are own."""
    origin = sa.Column("origin", sa.Text(), server_default=sa.text("'own'"), nullable=False)
    op.add_column("models", origin)
    op.execute("UPDATE models SET origin = 'outside' WHERE trusted = ''")


def downgrade() -> None:
    """Refuse: a ledger is never taken back."""
    raise NotImplementedError("where models came from cannot be forgotten")
