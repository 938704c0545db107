"""The form for a new job: common fields, all others as YAML, and the job file that they make."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from wattherd.errors import UserError
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.arrays import array_of
from wattherd.server.documents.documents import SiteView
from wattherd.server.journal.job_history import PastJob
from wattherd.workload.job_array import PAPER
from wattherd.workload.job_environment import Environment
from wattherd.workload.job_file import JobFile, validated_job
from wattherd.workload.resubmission import file_again, tasks_again
from wattherd.yaml_fields import fields_of

FORM = "form"
COMMON = ("name", "run", "gpus", "gpu_type", "queue", "priority", "limit", "restarts", "workdir")
"""Fields with a place of their own in the form."""
MOST_BYTES = 200_000
LONGEST_REST = 20_000
PLACES = {"time.limit": "limit", "time": "limit"}
"""Fields of a job file that are called otherwise in the form."""
_RANGE = re.compile(r"(\d+)\s*(?:-|to)\s*(\d+)")


@dataclass(slots=True)
class FilledForm:
    """The form as it is shown: texts by field, and what is wrong with them.

    `source` is the job that it was filled from, `variables` how many of that job's environment may
    be taken over, which `takes_environment` asks for.
    """

    texts: dict[str, str]
    rest: str = ""
    source: str = ""
    variables: int = 0
    takes_environment: bool = False
    key: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    yaml: str = ""
    error: UserError | None = None

    @property
    def words(self) -> bool:
        """Whether the command stands among the other fields, as a list of words."""
        return not self.texts["run"] and self.rest.startswith("run:")

    @property
    def fault(self) -> str:
        """The field of the form that is at fault: one of its own, or the rest."""
        name = "" if self.error is None else self.error.field
        if not name:
            return ""
        place = PLACES.get(name, name.partition(".")[0])
        return place if place in COMMON else "rest"


def empty() -> FilledForm:
    """The form before anything was typed."""
    return FilledForm(dict.fromkeys(COMMON, "") | {"gpus": "1"})


def from_job(past: PastJob, caller: Caller, first: PastJob | None = None) -> FilledForm:
    """The form filled from a job that the caller sees; `first` is the first task of its array."""
    mine = is_own(past, caller)
    if first is None:
        document = file_again(past.spec, past.paper, secrets=mine)
    else:
        made_of, index = first.paper[PAPER], past.spec.array_index
        document = tasks_again(past.spec, past.paper, made_of, [index], secrets=mine)
    filled = empty()
    filled.source = past.spec.id
    filled.variables = len(past.paper.get("environment") or {}) if mine else 0
    filled.takes_environment = filled.variables > 0
    time = dict(document.get("time", {}))
    shown = {**document, "limit": time.pop("limit", "")}
    for name in COMMON:
        value = shown.get(name, "")
        text = None if name == "run" and isinstance(value, list) else _text(value)
        if text is not None:
            filled.texts[name] = text
            document.pop(name, None)
    if time:
        document["time"] = time
    else:
        document.pop("time", None)
    filled.rest = yaml_of(document) if document else ""
    return filled


def is_own(past: PastJob, caller: Caller) -> bool:
    """Whether it is the caller's own job: only then its environment and secrets are taken over."""
    return (past.spec.user, past.spec.tenant) == (caller.user, caller.tenant)


def typed(fields: Mapping[str, str]) -> FilledForm:
    """The form as it was sent; browsers end lines in their own way."""
    run = fields.get("run", "").replace("\r\n", "\n")
    texts = {name: fields.get(name, "").strip() for name in COMMON}
    return FilledForm(
        texts=texts | {"run": run if run.strip() else ""},
        rest=fields.get("rest", "").replace("\r\n", "\n"),
        source=fields.get("from", ""),
        takes_environment=fields.get("environment") == "yes",
        key=fields.get("key", "")[:200] or secrets.token_urlsafe(18),
    )


def document_of(filled: FilledForm) -> dict[str, Any]:
    """The job file that the form makes: what has a place in the form comes first.

    Raises:
        UserError: the rest is no YAML mapping.
    """
    rest = _rest(filled.rest)
    texts = {name: text for name, text in filled.texts.items() if text}
    common: dict[str, Any] = {
        name: texts[name] for name in ("name", "run", "queue", "workdir") if name in texts
    }
    for name in ("priority", "restarts"):
        if name in texts:
            common[name] = _number(texts[name])
    if "gpus" in texts and "taskRoles" not in rest:
        common["gpus"] = _gpus(texts["gpus"])
    if "gpu_type" in texts:
        common["gpu_type"] = [one.strip() for one in texts["gpu_type"].split(",") if one.strip()]
    if "limit" in texts:
        times = rest.pop("time", None) or {}
        common["time"] = {**(times if isinstance(times, dict) else {}), "limit": texts["limit"]}
    return {name: common[name] for name in sorted(common, key=_place)} | {
        name: value for name, value in rest.items() if name not in common
    }


def _place(name: str) -> int:
    return COMMON.index("limit" if name == "time" else name)


def job_of(
    document: Mapping[str, Any], past: PastJob | None, caller: Caller, *, also: bool
) -> JobFile:
    """The job; with `also` it gets the environment of the caller's own job `past`.

    Raises:
        UserError: a field is unknown or wrong.
    """
    job = validated_job(document, FORM)
    variables = dict((past.paper.get("environment") or {}) if past is not None else {})
    if also and past is not None and is_own(past, caller) and variables and not job.environment:
        job = job.model_copy(update={"environment": Environment(variables=variables)})
    return job


def source_of(look: SiteView, caller: Caller, job_id: str) -> PastJob | None:
    """The job that a form is filled from; None where there is none for the caller."""
    past = look.history.get(job_id)
    return past if past is not None and caller.sees(past.spec) else None


def first_of(look: SiteView, past: PastJob) -> PastJob | None:
    """The first task of the array that a job is a task of."""
    array = array_of(look.history, past.spec.array)
    return None if array is None else array.first


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are written by hand."""

    def ignore_aliases(self, data: Any) -> bool:
        """A value that occurs twice is written twice."""
        del data
        return True


def _represent(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def yaml_of(document: Mapping[str, Any]) -> str:
    """A job file as text."""
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _rest(text: str) -> dict[str, Any]:
    hint = "lines such as `envs: {EPOCHS: 90}`; docs/reference/job-yaml.md has all fields"
    if len(text) > LONGEST_REST:
        problem = f"is longer than {LONGEST_REST:,} characters"
        raise UserError(problem, where=FORM, field="rest", hint="send a job file instead")
    try:
        # Of a few aliases whole mountains of values can be made.
        if any(isinstance(one, yaml.AliasToken) for one in yaml.scan(text)):
            problem = "aliases are not taken here"
            raise UserError(problem, where=FORM, field="rest", hint="write the value out")
        found = fields_of(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" at line {line + 1}"
        problem = f"is no YAML{where}: {getattr(error, 'problem', None) or 'it cannot be read'}"
        raise UserError(problem, where=FORM, field="rest", hint=hint) from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UserError("is no mapping of fields", where=FORM, field="rest", hint=hint)
    return found


def _text(value: Any) -> str | None:
    """A value as the form writes it; None where it has no way to."""
    if isinstance(value, dict) and value.keys() == {"min", "max"}:
        return f"{value['min']}-{value['max']}"
    if isinstance(value, list):
        plain = all(isinstance(one, str) and "," not in one for one in value)
        return ", ".join(value) if plain else None
    return str(value)


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else text


def _gpus(text: str) -> Any:
    found = _RANGE.fullmatch(text)
    if found is not None:
        return {"min": int(found[1]), "max": int(found[2])}
    return _number(text)
