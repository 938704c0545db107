"""The tables of a store. What happened is in `entries`; most others could be made from it again.

`answers` are the core's words to each entry, `snapshots` its state after one, `jobs` and `audit`
are projections. Measured watts (`samples`, and the joules of a job) follow from no entry. Whoever
changes a table writes a migration and raises `SCHEMA`.
"""

from __future__ import annotations

import sqlalchemy as sa

SCHEMA = "0004"
"""The latest migration, by its number."""
VERSION_TABLE = "alembic_version"

META = sa.MetaData()
ENTRIES = sa.Table(
    "entries",
    META,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("type", sa.String(40), nullable=False),
    sa.Column("by_whom", sa.String(120), nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("paper", sa.Text),
    sa.Column("digest", sa.String(64), nullable=False),
)
ANSWERS = sa.Table(
    "answers",
    META,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("commands", sa.Text, nullable=False),
)
FACTS = sa.Table(
    "facts",
    META,
    sa.Column("name", sa.String(40), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
SETTINGS = sa.Table(
    "settings",
    META,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("document", sa.Text, nullable=False),
    comment="How decisions were made of the entries after this one",
)
SNAPSHOTS = sa.Table(
    "snapshots",
    META,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("version", sa.String(40), nullable=False),
    sa.Column("setting", sa.String(64), nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
JOBS = sa.Table(
    "jobs",
    META,
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
    sa.Column("total", sa.Float),
    sa.Column("bill", sa.Text),
    sa.Index("jobs_by_id", "id", unique=True),
    sa.Index("jobs_by_state", "state", "number"),
    sa.Index("jobs_by_owner", "owner", "number"),
    sa.Index("jobs_by_tenant", "tenant", "number"),
    sa.Index("jobs_by_queue", "queue", "number"),
)
SAMPLES = sa.Table(
    "samples",
    META,
    sa.Column("at_s", sa.Float, primary_key=True),
    sa.Column("span_s", sa.Float, nullable=False),
    sa.Column("draw_w", sa.Float, nullable=False),
    sa.Column("budget_w", sa.Float),
    sa.Column("by_job", sa.Text, nullable=False),
    sa.Column("stated", sa.String(40), nullable=False),
)
AUDIT = sa.Table(
    "audit",
    META,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("by_whom", sa.String(120), nullable=False),
    sa.Column("what", sa.String(40), nullable=False),
    sa.Column("about", sa.String(200), nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Index("audit_by_whom", "by_whom", "seq"),
    sa.Index("audit_by_about", "about", "seq"),
)
