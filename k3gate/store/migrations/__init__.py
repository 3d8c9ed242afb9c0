"""Alembic environment of the store, shipped in the package and run by `k3gate.store.schema`."""
