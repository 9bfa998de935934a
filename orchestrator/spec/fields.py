"""The kinds of values in specs and configs, each with its JSON Schema and its description.

Decides what a duration, a name or a whole number may look like. Must never know which keys use them. Every
schema here accepts everything that its parser accepts.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from orchestrator.core import bounds

COUNT_MAX = bounds.COUNT_MAX
NAME_LENGTH_MAX = 36  # `<name>-<8 characters>-s<number>` must fit a Kaggle title of 50 characters
NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"
NAME_WORDS = (
    f"lower-case letters and digits, with single hyphens between, at most {NAME_LENGTH_MAX} characters"
)
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SECONDS_MAX = 100 * 365 * 86400.0
DURATION_WORDS = (
    "a duration above zero: a number of seconds, or a number with a unit such as 90s, 10m, 2h or 30d"
)


class Section(BaseModel):
    """A mapping that allows only known keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _seconds(value: Any) -> float:
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        seconds = float(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= _SECONDS_MAX:
        raise AssertionError
    return seconds


def _seconds_or_auto(value: Any) -> float | None:
    return None if value == "auto" else _seconds(value)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


DURATION_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?[smhd]$"},
    ],
    "description": DURATION_WORDS,
}
INTERVAL_SCHEMA: dict[str, Any] = {
    "anyOf": [*DURATION_SCHEMA["anyOf"], {"const": "auto"}],
    "description": f"auto, or {DURATION_WORDS}",
}

Whole = Annotated[int, BeforeValidator(_whole)]
Figure = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False, description="a number above zero")]
Amount = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False, description="a number, zero or more")]
Flag = Annotated[bool, Field(description="true or false")]
Text = Annotated[str, Field(min_length=1, max_length=10_000, description="text")]
Name = Annotated[
    str,
    Field(
        pattern=NAME,
        max_length=NAME_LENGTH_MAX,
        description=NAME_WORDS,
    ),
]
Names = Annotated[
    list[Name],
    BeforeValidator(_listed),
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": NAME},
                {"type": "array", "items": {"type": "string", "pattern": NAME}, "minItems": 1},
            ],
            "description": "a name, or a list of names",
        }
    ),
]
Words = Annotated[
    list[Text],
    BeforeValidator(_listed),
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
            "description": "a word, or a list of words",
        }
    ),
]
Duration = Annotated[float, BeforeValidator(_seconds), WithJsonSchema(DURATION_SCHEMA)]
Interval = Annotated[float | None, BeforeValidator(_seconds_or_auto), WithJsonSchema(INTERVAL_SCHEMA)]
Sha256 = Annotated[
    str, Field(pattern=r"^[0-9a-f]{64}$", description="a sha256: 64 hexadecimal digits in lower case")
]
