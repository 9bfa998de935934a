"""Tables as lines of YAML, to write into a config or to paste."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Quotes text that is a number in YAML 1.2 but not in PyYAML, which implements 1.1."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+"), list("-+.0123456789")
)


def as_block(table: Mapping[str, Any]) -> str:
    """The table as YAML in block style: lines to write into a config."""
    return yaml.dump(table, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)


def as_flow(table: Mapping[str, Any]) -> str:
    """The table as YAML on one line, to paste."""
    return yaml.dump(table, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=math.inf).strip()
