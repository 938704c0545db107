"""How much a job has to do in all, as it said itself, also once it is over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column; of jobs that were over before it is not known."""
    op.add_column("jobs", sa.Column("total", sa.Float))
