"""What a job and a config may say about inputs from the network: limits, tokens, private addresses.

Must never know how they are fetched.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from orchestrator.spec.document import Path, Problem, shown
from orchestrator.spec.fields import Section, Text

GB = 1_000_000_000
MAX_GB, CACHE_GB = 20.0, 100.0
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
TOKEN = r"^env:[A-Za-z_][A-Za-z0-9_]*$"

Gigabytes = Annotated[
    float, Field(gt=0, le=1e6, allow_inf_nan=False, description="a number of GB above zero")
]
Token = Annotated[
    str,
    Field(
        pattern=TOKEN, max_length=200,
        description="env:NAME, a variable with a token, which is sent to the first host alone",
    ),
]  # fmt: skip


@dataclass(frozen=True)
class InputRules:
    """`bytes_max` of one input, unless the job says otherwise; `cache_bytes_max` of all that were fetched;
    `allow_private`: names of hosts, addresses and networks that inputs may come from although they are
    private."""

    bytes_max: int = int(MAX_GB * GB)
    cache_bytes_max: int = int(CACHE_GB * GB)
    allow_private: tuple[str, ...] = ()


@dataclass(frozen=True)
class InputWish:
    """What a job says of one input besides its name and origin."""

    bytes_max: int | None = None
    token: str | None = None  # the name of a variable

    @classmethod
    def of(cls, max_gb: float | None, token: str | None) -> InputWish:
        """As a job has them."""
        limit = None if max_gb is None else max(1, int(max_gb * GB))
        return cls(limit, None if token is None else token.removeprefix("env:"))


class InputsSection(Section):
    """`inputs` of a config."""

    max_gb: Gigabytes = MAX_GB
    cache_gb: Gigabytes = CACHE_GB
    allow_private: list[Text] = Field(
        default=[],
        description="a list of hosts, addresses or networks, such as data.lab.local or 10.1.0.0/16",
    )

    def build(self) -> InputRules:
        return InputRules(int(self.max_gb * GB), int(self.cache_gb * GB), tuple(self.allow_private))


def input_rules_problems(given: object, path: Path) -> Iterator[Problem]:
    """The entries of `allow_private` that are neither hosts nor networks."""
    entries = given.get("allow_private") if isinstance(given, dict) else None
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, str) and entry and not _is_place(entry):
            yield Problem(
                (*path, "allow_private", number),
                f"given {shown(entry)}; valid: a host such as data.lab.local, an address, or a network, such "
                "as 10.1.0.0/16, without https:// and port",
            )


def _is_place(text: str) -> bool:
    try:
        ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        return HOST.fullmatch(text) is not None and not re.fullmatch(r"[0-9.]+", text)
    return True
