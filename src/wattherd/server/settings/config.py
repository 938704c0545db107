"""What a service is to manage, and how: one YAML file, all of it optional."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from wattherd.errors import UserError
from wattherd.server.auth.caller import Role
from wattherd.server.auth.oidc.settings import OidcSettings
from wattherd.server.limits.site_limits import SiteLimits
from wattherd.server.settings.notify_settings import NotifySettings
from wattherd.server.structured_log import Form
from wattherd.units import seconds
from wattherd.validation import misfit
from wattherd.workload.job_file import Level
from wattherd.workload.scenario import CellsSpec, QueueField, load
from wattherd.workload.yaml_lines import lines_of

MOST_SLOTS = 4096
SlotCount = Annotated[int, Field(ge=1, le=MOST_SLOTS)]
SlotType = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.]{0,31}$")]
HINT = "fields are called as options of `wattherd serve`"


class TenantSpec(BaseModel):
    """What is one tenant's: the system accounts its jobs run as, and places of its secrets."""

    model_config = ConfigDict(extra="forbid")

    account: str | None = Field(
        default=None, min_length=1, description="system account that all its jobs run as"
    )
    accounts: tuple[str, ...] = Field(
        default=(), description="other system accounts that its jobs may name by `user:`"
    )
    users: dict[str, str] = Field(default={}, description="account of a single user's jobs")
    own_accounts: bool = Field(
        default=False, description="each user's jobs run as the system account of that name"
    )
    secret_dirs: tuple[Path, ...] = Field(
        default=(), description="folders of files that its jobs may have as secrets"
    )
    secret_env: tuple[str, ...] = Field(
        default=(),
        description="environment variables of the service that its jobs may have as secrets",
    )
    containers: bool = Field(
        default=False, description="its jobs may use a container engine, which works as root"
    )


class ServeConfig(BaseModel):
    """Fields of `serve.yaml`; options of `wattherd serve` override fields of their name."""

    model_config = ConfigDict(extra="forbid")

    state: Path = Field(default=Path(".wattherd"), description="folder of journal and runs")
    store: str | None = Field(default=None, description="database URL, instead of one in `state`")
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(
        default=8700, ge=0, le=65535, description="port to listen on; 0 takes any that is free"
    )
    tls_cert: Path | None = Field(default=None, description="certificate chain (PEM)")
    tls_key: Path | None = Field(default=None, description="key of `tls_cert` (PEM)")
    trusted_proxies: tuple[str, ...] = Field(
        default=(), description="addresses or networks whose word for a caller's address is taken"
    )
    rate_per_s: float = Field(default=250.0, gt=0, description="requests of one token, on average")
    rate_burst: float = Field(default=1000.0, ge=1, description="requests of one token at once")
    snapshot_every: int = Field(
        default=10_000, ge=1, description="entries of the journal between two snapshots of the core"
    )
    policy: str = Field(
        default="priority-backfill", description="scheduler: a name of `wattherd policies`"
    )
    power: str = Field(
        default="water-filling",
        description="how watts are shared among jobs: a name of `wattherd policies`",
    )
    budget: str | None = Field(
        default=None,
        description="most watts of the site, such as 40kW; without it there is no limit",
    )
    signals: tuple[str, ...] = Field(
        default=(), description="limits from outside, as of `wattherd power signal`"
    )
    schedule: Path | None = Field(default=None, description="limits by time: CSV or YAML")
    rates: str | None = Field(
        default=None, description="prices and carbon intensities of energy: a file or an address"
    )
    slots: SlotCount | dict[SlotType, SlotCount] | None = Field(
        default=None,
        description="parts of the processor that jobs get where there is no GPU; or counts by type:"
        " {fast: 2, slow: 6}",
    )
    log: Form = Field(
        default=Form.NONE, description="whether decisions are written to standard error, and how"
    )
    kernel_log: Path = Field(default=Path("/dev/kmsg"), description="tells faults of devices")
    powercap: Path | None = Field(
        default=None, description="meters and limits of the processor, also for slots asked for"
    )
    zeusd: Path | None = Field(default=None, description="socket of a zeusd that sets GPU limits")
    measure_only: bool = Field(
        default=False, description="read watts of devices, and never set a limit of one"
    )
    job_metrics: bool = Field(
        default=False, description="whether /metrics has series for each job, too"
    )
    otlp: str | None = Field(
        default=None,
        description="OpenTelemetry collector that gets metrics and decisions, OTLP over HTTP",
    )
    runs: Path = Field(default=Path("runs"), description="simulated runs that pages compare")
    app_url: str | None = Field(
        default=None,
        description="where jobs' pages are shown: https://{job}.apps.example, or another port",
    )
    oidc: OidcSettings | None = Field(default=None, description="single sign-on by OpenID Connect")
    priority_ceiling: dict[Role, Level] = Field(
        default={Role.USER: "normal"},
        description="the highest that callers of a role may give: low, normal, high, a number",
    )
    tenants: dict[str, TenantSpec] = Field(
        default={}, description="system accounts of tenants' jobs, and what else is theirs"
    )
    default_account: str | None = Field(
        default=None, description="system account of all other jobs (root's service only)"
    )
    most_grace: str = Field(
        default="1h", description="the longest `checkpoint.grace` of a job: so long a stop may take"
    )
    require_account: bool = Field(
        default=False, description="refuse jobs of tenants that have no account of their own"
    )
    require_limits: bool = Field(
        default=False, description="refuse jobs whose limits this machine does not keep"
    )
    exec: bool = Field(
        default=True,
        description="users may run commands inside their running jobs, and give them input",
    )
    exec_idle: str = Field(
        default="1h", description="a command inside ends when nothing came or went for so long"
    )
    allow_root_jobs: bool = Field(
        default=False, description="root's service: jobs without an account run as root"
    )
    secret_dirs: tuple[Path, ...] = Field(
        default=(), description="folders of files that jobs of all tenants may have as secrets"
    )
    secret_env: tuple[str, ...] = Field(
        default=(),
        description="environment variables of the service that all jobs may have as secrets",
    )
    notify: NotifySettings = Field(
        default=NotifySettings(), description="how users are told of their jobs"
    )
    site: SiteLimits | None = Field(
        default=None, description="limits above this machine that others draw on, too"
    )
    queues: QueueField | None = Field(
        default=None, description="the tree of queues, for the scheduler `capacity`"
    )
    cells: CellsSpec = Field(
        default=CellsSpec(), description="the cells of virtual clusters, for the scheduler `hived`"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _can_be_a_name(cls, value: Any) -> Any:
        """No file, address or program has a null byte in its name; Python would fail later."""
        if isinstance(value, str | Path) and "\0" in str(value):
            raise ValueError("has a null byte in it")
        return value

    @field_validator("slots", mode="before")
    @classmethod
    def _slot_types(cls, given: Any) -> Any:
        """`4`, or as an option of the command line `fast=2,slow=6`."""
        if not isinstance(given, str):
            return given
        parts = [one.partition("=") for one in given.split(",")]
        types = {name.strip(): count.strip() for name, _, count in parts}
        if len(types) < len(parts):
            raise ValueError("names a type of slots twice")
        return types if parts[0][1] else given

    @field_validator("exec_idle", "most_grace")
    @classmethod
    def _time(cls, given: str) -> str:
        try:
            positive = seconds(given) > 0
        except UserError as error:
            raise ValueError(error.problem) from None
        if not positive:
            raise ValueError("is no time to wait")
        return given

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for one in given:
            ipaddress.ip_network(one, strict=False)
        return given


def read_config(path: Path | None, changes: Mapping[str, Any]) -> ServeConfig:
    """The configuration of a file with `changes` that are not None; defaults without a file.

    Raises:
        UserError: an unknown or wrong field.
    """
    document = load(path, hint=HINT) if path is not None else {}
    given = {name: value for name, value in changes.items() if value is not None}
    try:
        return ServeConfig.model_validate(document | given)
    except ValidationError as problem:
        error = misfit(problem, str(path or "serve"), ServeConfig)
        if path is None or error.field.partition(".")[0] in given:
            raise error from None
        with lines_of(path):
            raise error from None
