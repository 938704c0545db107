"""Who calls, in which role, for which tenant; knows neither HTTP nor where tokens are kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wattherd.model.job import JobSpec


class Role(StrEnum):
    """What a caller may do; each role may do what those before it may."""

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, other: Role) -> bool:
        """Whether this role may do what `other` may."""
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One caller. Operators and admins are the site's, all others belong to `tenant`.

    `token` is the number of the token shown; empty on a service that asks for none.
    """

    user: str
    role: Role
    tenant: str = ""
    token: str = ""

    @property
    def of_site(self) -> bool:
        """Whether tenants make no difference."""
        return self.role.covers(Role.OPERATOR)

    @property
    def by(self) -> str:
        """The name that the journal keeps; two tenants may each have an `ann`.

        An issuer may let people choose names: no user of one tenant gets the name of another's.
        """
        if self.tenant:
            return f"{self.tenant.replace('%', '%25').replace('/', '%2F')}/{self.user}"
        return f"/{self.user}" if "/" in self.user else self.user or "anonymous"

    def sees(self, spec: JobSpec) -> bool:
        """Whether the job, its logs and its files are there for this caller at all."""
        return self.of_site or spec.tenant == self.tenant

    def touches(self, spec: JobSpec) -> bool:
        """Whether the caller may cancel, pause and resume the job."""
        owns = self.role.covers(Role.USER) and spec.user == self.user
        return self.of_site or (owns and self.sees(spec))
