"""Jobs that people use by a browser: notebooks, editors, anything that serves pages.

What runs is told by variables where to listen and below which address it is seen; these names are
the runtime's (`local.apps`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from wattherd import units
from wattherd.errors import UserError

Kind = Literal["jupyter", "vscode", "web"]
LONGEST_S = 366 * 86_400.0
JUPYTER = """\
set -- --no-browser --ServerApp.ip=127.0.0.1 --ServerApp.port="$WATTHERD_APP_PORT" \
 --ServerApp.port_retries=0 --ServerApp.base_url="$WATTHERD_APP_BASE" \
 --ServerApp.allow_remote_access=True
[ "$(id -u)" != 0 ] || set -- "$@" --allow-root
if command -v jupyter-lab >/dev/null; then exec jupyter-lab "$@"; fi
exec jupyter-server "$@"
"""
"""Its token comes by JUPYTER_TOKEN, where nobody sees it in a list of processes."""
VSCODE = """\
exec code-server --bind-addr "127.0.0.1:$WATTHERD_APP_PORT" --auth password \
 --disable-telemetry --disable-update-check "$PWD"
"""
"""Its password comes by HASHED_PASSWORD, likewise."""
COMMANDS = {"jupyter": JUPYTER, "vscode": VSCODE}


def _idle(value: str | float) -> str | float:
    try:
        found = units.seconds(value)
    except UserError as error:
        raise ValueError(error.line()) from None
    if not 1 <= found <= LONGEST_S:
        raise ValueError(f"{value!r} is out of range")
    return value


class AppSpec(BaseModel):
    """What a job serves: `jupyter` and `vscode` know how to be run, `web` has a `run`.

    It is reached below `/jobs/ID/app/` by its owner, or by all who see the job.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Kind = "web"
    share: Literal["owner", "tenant"] = Field(default="owner", description="who may open it")
    idle: Annotated[str | float, AfterValidator(_idle)] | None = Field(
        default=None, description="it is ended when nobody has used it for so long"
    )
    keep_prefix: bool = Field(
        default=False, description="web: sees the whole path, not only what follows its address"
    )

    @property
    def command(self) -> str | None:
        """What runs, unless the job says what."""
        return COMMANDS.get(self.kind)

    def paper(self) -> dict[str, Any]:
        """As the runtime has it."""
        return {
            "kind": self.kind,
            "share": self.share,
            "idle_s": None if self.idle is None else units.seconds(self.idle),
            "keep_prefix": self.keep_prefix or self.kind == "jupyter",
        }
