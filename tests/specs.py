"""A good spec, the job parsed from it, and the mistakes reported for a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.errors import Mistake, SpecError
from orchestrator.spec import parse

GOOD = """\
name: demo
source: code
command: python train.py --steps {steps}
work: {total: 100, global_batch: 64, group: 8}
profiles:
  cpu: {micro_batch: 8, precision: fp32}
"""


def mistakes(text: str | bytes, folder: Path | None = None) -> tuple[Mistake, ...]:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(SpecError) as caught:
        parse(data, "job.yaml", folder)
    return caught.value.mistakes


def mistake(text: str | bytes, folder: Path | None = None) -> Mistake:
    found = mistakes(text, folder)
    assert len(found) == 1, [str(each) for each in found]
    return found[0]


def with_(**lines: str) -> str:
    """GOOD with top-level keys replaced or appended, each on its own line."""
    kept = yaml.safe_load(GOOD)
    for key in lines:
        kept.pop(key, None)
    return yaml.safe_dump(kept, sort_keys=False) + "".join(
        f"{key}: {value}\n" for key, value in lines.items()
    )
