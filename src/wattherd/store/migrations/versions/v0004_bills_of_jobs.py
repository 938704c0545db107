"""What the energy of a job has cost and emitted; of jobs that were over before it is not known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column."""
    op.add_column("jobs", sa.Column("bill", sa.Text))
