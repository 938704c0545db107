"""The journal alone: entries, the core's answers, and facts of the store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables of the first version."""
    op.create_table(
        "entries",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("type", sa.String(40), nullable=False),
        sa.Column("by_whom", sa.String(120), nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("paper", sa.Text),
        sa.Column("digest", sa.String(64), nullable=False),
    )
    op.create_table(
        "answers",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("commands", sa.Text, nullable=False),
    )
    op.create_table(
        "facts",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
