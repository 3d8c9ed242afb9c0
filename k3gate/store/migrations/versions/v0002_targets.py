"""Runs keep the text of their own target, and waivers are bound to one; those given before say none and lapse."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("waiver", sa.Column("target_hash", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("target_text", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("run", "target_text")
    op.drop_column("waiver", "target_hash")
