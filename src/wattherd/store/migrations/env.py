"""What Alembic runs: within the transaction, and on the connection, of who opens the store."""

from __future__ import annotations

from alembic import context

from wattherd.store.tables import META

context.configure(connection=context.config.attributes["connection"], target_metadata=META)
context.run_migrations()
