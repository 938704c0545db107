"""`wattherd`: mounts the command groups and turns errors into one line and an exit code.

Exit codes: 0 fine, 1 the answer is no (a job that failed, a comparison that does not hold),
2 unusable input, 3 not there, 4 nobody answers, 5 refused.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from wattherd import __version__
from wattherd.cli.other_schedulers import meant
from wattherd.errors import UserError, harmless
from wattherd.spelling import hint_for

# Click 8.2 and later raise this where earlier ones print the help themselves.
_NO_ARGUMENTS: type[click.UsageError] | tuple[()] = getattr(
    click.exceptions, "NoArgsIsHelpError", ()
)

# Matrices here are small: a second BLAS thread gains nothing, and on a busy machine the first one
# spins for seconds while it waits for the second to be scheduled. Whoever sets it is obeyed.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

COMMANDS = {
    "submit": ("wattherd.cli.jobs:submit", "Hand a job in."),
    "run": ("wattherd.cli.jobs:run", "Hand a job in and follow it."),
    "queue": ("wattherd.cli.site:queue", "Jobs that run or wait, and why."),
    "explain": ("wattherd.cli.jobs:explain", "Why a job waits, or what became of it."),
    "show": ("wattherd.cli.jobs:show_command", "Everything about a job."),
    "logs": ("wattherd.cli.jobs:logs", "What a job printed."),
    "exec": ("wattherd.cli.job_sessions:exec_command", "Run a command inside a running job."),
    "attach": ("wattherd.cli.job_sessions:attach", "Follow a job, and give it input."),
    "edit": ("wattherd.cli.jobs:edit", "Change what a waiting job asks for."),
    "rerun": ("wattherd.cli.jobs:rerun", "Hand a job in once more."),
    "cancel": ("wattherd.cli.jobs:cancel", "End jobs."),
    "pause": ("wattherd.cli.jobs:pause", "Stop jobs after a checkpoint."),
    "resume": ("wattherd.cli.jobs:resume", "Let paused jobs go on."),
    "history": ("wattherd.cli.site:history", "The last jobs, ended ones too."),
    "nodes": ("wattherd.cli.site:nodes", "Nodes and their use."),
    "gpus": ("wattherd.cli.site:gpus", "Devices and who is on them."),
    "power": ("wattherd.cli.power:power", "Draw and budget of the site; tools for watts."),
    "queues": ("wattherd.cli.queues:queues", "Queues and their shares; change them."),
    "tenants": ("wattherd.cli.tenants:tenants", "Tenants and what they hold; limit them."),
    "search": ("wattherd.cli.search:search", "Search groups: their trials, the best."),
    "audit": ("wattherd.cli.audit:audit", "Who did what, and who asked for what."),
    "store": ("wattherd.cli.store:store", "Back up, check and restore a service's store."),
    "login": ("wattherd.cli.login:login", "Keep a service's address and a token."),
    "context": ("wattherd.cli.login:context", "Which service is talked to; choose another."),
    "token": ("wattherd.cli.token:token", "Who may use the service."),
    "schema": ("wattherd.cli.schema:schema", "JSON Schemas of job files and others, for editors."),
    "watch": ("wattherd.cli.watch:watch", "What happens, line by line, as it happens."),
    "top": ("wattherd.cli.top:top", "Watch draw, jobs and devices live."),
    "serve": ("wattherd.cli.serve:serve", "Manage this machine: take jobs, run them."),
    "completion": ("wattherd.cli.completion:completion", "Complete commands by the Tab key."),
    "docs": ("wattherd.cli.docs:docs", "Read and search the documentation, offline."),
    "examples": ("wattherd.cli.examples:examples", "Job files and programs to begin with."),
    "demo": ("wattherd.cli.demo:demo", "Real trainings under a budget that is cut midway."),
    "kube": ("wattherd.cli.kube:kube", "Decide for Kubernetes clusters."),
    "knob": ("wattherd.cli.knob:knob", "Set power limits and clocks, switch nodes."),
    "meter": ("wattherd.cli.meter:meter", "Read power meters."),
    "new": ("wattherd.cli.new:new", "A package with a scheduler, scorer, policy, meter or format."),
    "policies": ("wattherd.cli.policies:policies", "List the policies and their options."),
    "report": ("wattherd.cli.report:report", "A run, or a live site's past, as one page."),
    "reproduce": ("wattherd.cli.reproduce:reproduce", "Rerun a published experiment, compare."),
    "import": ("wattherd.cli.import_site:import_site", "A log of Slurm and others as a scenario."),
    "export": ("wattherd.cli.import_site:export", "Jobs in the Standard Workload Format."),
    "sim": ("wattherd.cli.sim:sim", "Simulate placement and scheduling."),
    "bench": ("wattherd.cli.bench:bench", "Rank schedulers, power sharing, placement."),
    "cache": ("wattherd.cli.cache:cache", "Kept results of simulations: see, clear."),
    "view": ("wattherd.cli.view:view", "Show what a service left, or a run, in a browser."),
    "traces": ("wattherd.cli.traces:traces", "List, fetch, generate and inspect traces."),
}


SHORT = {"q": "queue"}


class _Lazy(click.Group):
    """Imports a command's module only when that command is called, so `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; what comes near is named if there is none.

        Raises:
            click.UsageError: there is none.
        """
        if args and args[0] in SHORT:
            args = [SHORT[args[0]], *args[1:]]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = meant(args[0], args[1:]) or hint_for(args[0], COMMANDS)
            known = hint.startswith(("wattherd ", "did you"))
            hint = hint if known else "`wattherd --help` lists all"
            raise click.UsageError(f"no command {args[0]!r} (hint: {hint})", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Short helps from the table, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="wattherd")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def cli(*, debug: bool) -> None:
    """Schedule deep-learning training on heterogeneous GPU clusters under a power budget."""
    del debug  # read by `main`, which alone may show a traceback


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `wattherd` command."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        code = cli.main(arguments, prog_name="wattherd", standalone_mode=False)
    except UserError as error:
        if "--debug" in arguments:
            raise
        _fail(error.line(), error.exit_code)
    except _NO_ARGUMENTS as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        message = error.format_message()
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
            if "hint: " not in message:
                path = error.ctx.command_path
                message = f"{message.rstrip('.')} (hint: `{path} --help` tells what it takes)"
        _fail(message)
    except (KeyboardInterrupt, click.Abort):
        click.echo("wattherd: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(line: str, code: int = UserError.exit_code) -> None:
    click.echo(f"wattherd: error: {harmless(line)}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
