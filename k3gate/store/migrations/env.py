"""Run by Alembic: migrates on the connection that `k3gate.store.schema` hands over, in its transaction."""

from __future__ import annotations

from alembic import context

from k3gate.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
