"""Settings, snapshots, and what is looked up without replay: jobs, draw, audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the tables; the service fills them from the entries."""
    op.create_table(
        "settings",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("document", sa.Text, nullable=False),
        comment="How decisions were made of the entries after this one",
    )
    op.create_table(
        "snapshots",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("version", sa.String(40), nullable=False),
        sa.Column("setting", sa.String(64), nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    _jobs()
    _samples()
    _audit()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.String(120), nullable=False),
        sa.Column("tenant", sa.String(120), nullable=False),
        sa.Column("queue", sa.String(200), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("submit_s", sa.Float, nullable=False),
        sa.Column("first_start_s", sa.Float),
        sa.Column("finish_s", sa.Float),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("progress", sa.Float, nullable=False),
        sa.Column("loss", sa.Float),
        sa.Column("exit_code", sa.Integer),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("energy_j", sa.Float, nullable=False),
        sa.Column("by_whom", sa.String(120), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("paper", sa.Text, nullable=False),
    )
    op.create_index("jobs_by_id", "jobs", ["id"], unique=True)
    for name in ("state", "owner", "tenant", "queue"):
        op.create_index(f"jobs_by_{name}", "jobs", [name, "number"])


def _samples() -> None:
    op.create_table(
        "samples",
        sa.Column("at_s", sa.Float, primary_key=True),
        sa.Column("span_s", sa.Float, nullable=False),
        sa.Column("draw_w", sa.Float, nullable=False),
        sa.Column("budget_w", sa.Float),
        sa.Column("by_job", sa.Text, nullable=False),
        sa.Column("stated", sa.String(40), nullable=False),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("by_whom", sa.String(120), nullable=False),
        sa.Column("what", sa.String(40), nullable=False),
        sa.Column("about", sa.String(200), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_index("audit_by_whom", "audit", ["by_whom", "seq"])
    op.create_index("audit_by_about", "audit", ["about", "seq"])
