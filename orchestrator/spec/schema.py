"""The job spec as pydantic models: the keys, and what each value may be.

Checks that involve several values are in `orchestrator.spec.checks`. Must never read files.
"""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, WithJsonSchema

from orchestrator import cron
from orchestrator.core import bounds
from orchestrator.core.accelerators import catalogue
from orchestrator.core.job import DEFAULT, Kind, Precision, Window
from orchestrator.core.save_pattern import SavePattern
from orchestrator.core.wording import with_valid
from orchestrator.spec import commands, elsewhere
from orchestrator.spec.commands import Given
from orchestrator.spec.document import shown
from orchestrator.spec.fetching import Gigabytes, Token
from orchestrator.spec.fields import (
    COUNT_MAX,
    DURATION_WORDS,
    NAME_WORDS,
    VARIABLE,
    Amount,
    Duration,
    Figure,
    Flag,
    Interval,
    Name,
    Section,
    Sha256,
    Text,
    Whole,
)
from orchestrator.spec.notices import NotifySection
from orchestrator.spec.rules import Rules

MICRO_BATCH_MAX = bounds.MICRO_BATCH_MAX
SEED_MAX = 2**32 - 1  # numpy's; torch takes more
_PRECISIONS = ", ".join(Precision)
_VARIABLE_WORDS = "the name of an environment variable: letters, digits and underscores, no digit first"
_TOLD_MAX = 8
_WINDOW = re.compile(r"([0-9]{1,2}):([0-9]{2}) ?[-–] ?([0-9]{1,2}):([0-9]{2})")


def _date(value: str) -> str:
    try:
        return datetime.date.fromisoformat(value).isoformat()
    except ValueError:
        raise ValueError(f"given {shown(value)}; valid: a date such as 2025-10-21") from None


def _cron(value: str) -> str:
    wrong = cron.problem(value)
    if wrong is not None:
        raise ValueError(f"given {shown(value)}: {wrong}")
    return value


def window_of(value: object) -> Window | None:
    """The window that this text names; None if it names none."""
    match = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    opens_hour, opens_minute, closes_hour, closes_minute = map(int, match.groups())
    if max(opens_hour, closes_hour) > 23 or max(opens_minute, closes_minute) > 59:
        return None
    opens, closes = opens_hour * 60 + opens_minute, closes_hour * 60 + closes_minute
    return None if opens == closes else Window(opens, closes)


def _window(value: Any) -> Any:
    found = window_of(value)
    if found is None:
        raise AssertionError
    return found.opens, found.closes


def _rising(value: list[float]) -> list[float]:
    if value[0] > value[1]:
        raise ValueError(f"given {value[0]:g} before {value[1]:g}; valid: the lower number first")
    return value


def _distinct(value: list[str]) -> list[str]:
    twice = sorted({item for item in value if value.count(item) > 1}) if len(value) <= 1000 else []
    if twice:
        raise ValueError(f"given twice: {', '.join(twice[:_TOLD_MAX])}; keep one")
    return value


def _output(value: str) -> str:
    if value.startswith("!"):
        raise ValueError(
            f"given {shown(value)}; a pattern cannot leave files out; valid: patterns of the files to keep"
        )
    if value.startswith("~") or "$" in value:
        raise ValueError(f"given {shown(value)}; ~ and $ are not expanded; valid: a path below the working "
                         "directory")  # fmt: skip
    if "{" in value:
        raise ValueError(f"given {shown(value)}; braces are not filled here; valid: * for any characters")
    return _below(value)


def _below(value: str) -> str:
    pieces = value.rstrip("/").split("/")
    if value.startswith("/") or "\\" in value or "\0" in value or not {"", ".", ".."}.isdisjoint(pieces):
        raise ValueError(f"given {shown(value)}; valid: a path below the working directory, with / between "
                         "its parts, and *, ? or ** for any characters")  # fmt: skip
    return value


def _precision(value: Any) -> Any:
    if isinstance(value, str | int) and not isinstance(value, bool) and value not in tuple(Precision):
        meant = elsewhere.precision(str(value))
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise ValueError(with_valid(f"given {shown(value)}{hint}", f"one of {_PRECISIONS}"))
    return value


Command = Annotated[
    Given,
    BeforeValidator(commands.read),
    WithJsonSchema({
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": commands.WORDS_MAX},
            {"type": "object", "properties": {"shell": {"type": "string"}}, "required": ["shell"],
             "additionalProperties": False},
        ],
    }),
]  # fmt: skip
PrecisionName = Annotated[Literal["fp32", "bf16", "fp16"], BeforeValidator(_precision)]
Variable = Annotated[str, Field(pattern=VARIABLE, max_length=200, description=_VARIABLE_WORDS)]
Secret: dict[str, JsonValue] = {
    "writeOnly": True
}  # JSON Schema's keyword for a secret: messages do not repeat the value
SecretName = Annotated[Variable, Field(json_schema_extra=Secret)]
_ACCELERATORS: dict[str, JsonValue] = {
    "propertyNames": {
        "anyOf": [
            {"enum": [*catalogue, "default", "gpu"]},
            {"pattern": r"^gpu>=[0-9]{1,5}(\.[0-9]{1,3})?GB$"},
            # Several of a GPU, and the accelerators of the user's config, which a schema cannot know.
            {"pattern": r"^[A-Za-z][A-Za-z0-9._-]*$"},
        ]
    }
}
EnvValue = Annotated[str, Field(max_length=32_768, description="text", json_schema_extra=Secret)]
Location = Annotated[str, Field(min_length=1, max_length=4096)]
Date = Annotated[str, AfterValidator(_date)]
_WINDOW_WORDS = "a time of the day in which sessions may run, such as 22:00–07:00; two different times"
DailyWindow = Annotated[
    tuple[int, int],
    BeforeValidator(_window),
    WithJsonSchema({
        "type": "string", "pattern": "^[0-9]{1,2}:[0-9]{2} ?[-–] ?[0-9]{1,2}:[0-9]{2}$",
        "description": _WINDOW_WORDS,
    }),
]  # fmt: skip


_REQUIREMENTS_WORDS = (
    "a requirements file, such as requirements.txt, relative to this file, or a mapping of such files"
)
_KIND_WORDS = "default, or a kind of accelerator: cpu, gpu or tpu"


_LOCATION_MAX = 4096


def _by_kind(value: Any) -> Any:
    return {DEFAULT: value} if isinstance(value, str) and 0 < len(value) <= _LOCATION_MAX else value


RequirementsFiles = Annotated[
    dict[Literal["default", "cpu", "gpu", "tpu"], Location],
    Field(min_length=1),
    BeforeValidator(_by_kind),
    WithJsonSchema({
        "type": ["string", "object"], "minLength": 1, "maxLength": _LOCATION_MAX, "minProperties": 1,
        "propertyNames": {"enum": [DEFAULT, *Kind], "description": _KIND_WORDS},
        "additionalProperties": {
            "type": "string", "minLength": 1, "maxLength": _LOCATION_MAX,
            "description": "a requirements file, relative to this file",
        },
    }),
]  # fmt: skip


def _watch(value: str) -> str:
    try:
        SavePattern.parse(value)
    except ValueError as error:
        raise ValueError(f"given {shown(value)}; valid: {error}") from None
    return value


WatchPattern = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_watch)]
OutputPattern = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_output)]


class ClaimSection(Section):
    steps_per_second: Annotated[list[Figure], AfterValidator(_rising)] = Field(
        min_length=2, max_length=2, description="two numbers above zero, low and high, such as [10, 25]"
    )
    batch: Whole = Field(ge=1, le=COUNT_MAX, description="samples per step, a whole number from 1")
    on: Text = Field(description="text: the machine that the figure is for")
    source: Text = Field(description="text: where the figure comes from")
    date: Date = Field(description="a date such as 2025-10-21")


class ProfileSection(Section):
    micro_batch: Whole = Field(
        ge=1,
        le=MICRO_BATCH_MAX,
        description=f"samples per device and forward pass, a whole number from 1 to {MICRO_BATCH_MAX}",
    )
    precision: PrecisionName = Field(description=f"one of {_PRECISIONS}")
    memory_gb: Figure | None = Field(default=None, description="GB needed per device, above zero")
    claim: ClaimSection | None = Field(default=None, description="a mapping: somebody's figure for the rate")


class PhaseSection(Section):
    from_: Whole = Field(
        alias="from", ge=0, le=COUNT_MAX, description="the step where the phase begins, a whole number from 0"
    )
    flops_per_step: Figure = Field(description="FLOPs of one step, above zero")


class WorkSection(Section):
    unit: Literal["steps"] = Field(default="steps", description="steps")
    total: Whole = Field(
        ge=1, le=COUNT_MAX, description=f"optimizer steps in total, a whole number from 1 to {COUNT_MAX}"
    )
    global_batch: Whole = Field(
        ge=1, le=COUNT_MAX, description=f"samples per optimizer step, a whole number from 1 to {COUNT_MAX}"
    )
    group: Whole = Field(
        ge=1,
        le=COUNT_MAX,
        default=1,
        description="samples that the loss couples, a whole number from 1 that divides every batch",
    )
    parameters: Figure | None = Field(
        default=None, description="the model's parameters, a number such as 80.3e6"
    )
    flops_per_step: Figure | None = Field(
        default=None, description="FLOPs of one step, a number such as 25.7e12"
    )
    phases: list[PhaseSection] = Field(
        default=[], description="a list of {from: step, flops_per_step: FLOPs}"
    )


ORIGIN_WORDS = "a file or folder, relative to this file; or https://…, kaggle:owner/dataset, hf:owner/dataset"


class InputSection(Section):
    name: Name
    from_: Text = Field(alias="from", description=ORIGIN_WORDS)
    sha256: Sha256 | None = None
    max_gb: Gigabytes | None = None
    token: Token | None = None
    allow: list[Text] = Field(
        default=[],
        description="a list of paths in this input, or patterns, that are sent although they look like "
        "credentials or are links out of it",
    )


class NeedsSection(Section):
    disk_gb: Amount = 0.0
    memory_gb: Amount = 0.0
    internet: Flag = False


class BestSection(Section):
    metric: Text = Field(description="text: a metric that the training reports")
    mode: Literal["max", "min"] = Field(default="max", description="max or min")


class KeepSection(Section):
    last: Whole = Field(
        default=3,
        ge=1,
        le=1000,
        description="how many of the newest, a whole number from 1 to 1000",
    )
    best: BestSection | None = Field(default=None, description="a mapping such as {metric: mrr, mode: max}")


class CheckpointSection(Section):
    interval: Interval = None
    keep: KeepSection = Field(default_factory=KeepSection, description="a mapping with last and best")
    watch: WatchPattern | None = Field(
        default=None,
        description="one pattern: where the script saves by itself, relative to the working directory: a "
        "file or folder such as checkpoints/ckpt_{step}.pt",
    )


class RouteSection(Section):
    prefer: Literal["fastest", "cheapest"] = Field(default="fastest", description="fastest or cheapest")
    platforms: list[Name] = Field(default=[], description="a list of platforms of your config")
    precision: Literal["any", "fp32", "bf16", "fp16"] = Field(
        default="any", description=f"any, or one of {_PRECISIONS}"
    )
    finish_within: Duration = 30 * 86400.0
    rules: Rules = Field(default=[], description="a list of rules")


class RetrySection(Section):
    without_progress: Whole = Field(
        default=3,
        ge=1,
        le=1000,
        description="sessions in a row without a newer checkpoint, a whole number from 1 to 1000",
    )


class ScheduleSection(Section):
    cron: Annotated[str, AfterValidator(_cron)] = Field(
        description="text: minute hour day month weekday, such as '0 1 * * *'; six fields if seconds come "
        "first; or @hourly, @daily, @weekly, @monthly, @yearly"
    )
    timezone: Text = Field(default="UTC", description="a time zone such as Europe/Berlin")
    mode: Literal["continue", "fresh"] = Field(
        default="continue", description="continue (one growing run) or fresh (a new run each time)"
    )
    overlap: Literal["skip", "queue", "replace"] = Field(
        default="skip", description="skip, queue or replace: if the earlier run is still under way"
    )
    catch_up: Literal["none", "one", "all"] = Field(
        default="one", description="none, one or all: of the fires missed while no controller ran"
    )
    jitter: Duration | None = Field(
        default=None, description=f"how much later than planned a fire may come, {DURATION_WORDS}"
    )
    window: DailyWindow | None = None


class JobSection(Section):
    """The whole spec."""

    name: Name = Field(description=f"the job's name: {NAME_WORDS}")
    command: Command = Field(
        description="text: the program and its arguments, split as a shell would and run without one; or a "
        "list of words; or {shell: …} for a shell's script; "
        f"placeholders {' '.join(f'{{{name}}}' for name in commands.PLACEHOLDERS)}"
    )
    source: Location | None = Field(
        default=None,
        description="the folder of the code, relative to this file; needed unless `image` holds it",
    )
    source_allow: list[Text] = Field(
        default=[],
        description="a list of files in `source` that are sent although they look like credentials",
    )
    image: Location | None = Field(
        default=None, description="a folder with a Dockerfile, relative to this file, or an image's name"
    )
    requirements: RequirementsFiles | None = Field(default=None, description=_REQUIREMENTS_WORDS)
    python: Text | None = Field(
        default=None,
        description="the Python on your own machine: the path of an interpreter or of an environment, "
        "relative to this file, or the name of a conda environment",
    )
    seed: Whole = Field(default=0, ge=0, le=SEED_MAX, description=f"a whole number from 0 to {SEED_MAX}")
    tags: Annotated[list[Name], AfterValidator(_distinct)] = Field(default=[], description="a list of names")
    inputs: list[InputSection] = Field(default=[], description="a list of {name, from, sha256, allow}")
    work: WorkSection = Field(description="a mapping with at least total and global_batch")
    needs: NeedsSection = Field(
        default_factory=NeedsSection, description="a mapping of disk_gb, memory_gb, internet"
    )
    checkpoint: CheckpointSection = Field(
        default_factory=CheckpointSection, description="a mapping of interval and keep"
    )
    profiles: dict[str, ProfileSection] = Field(
        min_length=1,
        json_schema_extra=_ACCELERATORS,
        description="a mapping of accelerators, gpu, gpu>=24GB or default to how the job runs on them, such "
        "as {T4: {micro_batch: 8, precision: fp16}}",
    )
    route: RouteSection = Field(
        default_factory=RouteSection, description="a mapping of preferences for where to run"
    )
    retry: RetrySection = Field(default_factory=RetrySection, description="a mapping with without_progress")
    env: dict[Variable, EnvValue] = Field(
        default={}, description="a mapping of environment variables to text"
    )
    secrets: Annotated[list[SecretName], AfterValidator(_distinct)] = Field(
        default=[],
        description="a list of the names of environment variables, never their values",
        json_schema_extra=Secret,
    )
    schedule: ScheduleSection | None = Field(
        default=None, description="a mapping such as {cron: '0 1 * * *', timezone: Europe/Berlin}"
    )
    notify: NotifySection | None = Field(
        default=None, description="a mapping such as {on: [done, failed], url: env:NOTIFY_URL}"
    )
    on_nan: Literal["continue", "fail"] = Field(
        default="continue", description="continue or fail: when a reported loss is not a finite number"
    )
    outputs: list[OutputPattern] | None = Field(
        default=None,
        max_length=100,
        description="a list of files to bring home from each session, relative to the working directory, "
        "such as results/*.csv or plots/; at most 100",
    )
