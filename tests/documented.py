"""The YAML in the documents: every block, and whether the product's own readers take it.

A block may be a whole job, a whole config, or some keys of one of them, which are then read with the keys
that they lack. Knows nothing of what the pages say about them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator import spec
from orchestrator.config import reading
from orchestrator.errors import InputError
from orchestrator.spec.schema import JobSection

JOB = {
    "name": "name: example",
    "source": "source: .",
    "command": "command: python train.py",
    "work": "work: {total: 20000, global_batch: 64}",
    "profiles": "profiles: {default: {micro_batch: 8, precision: fp32}}",
}
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^(?: {4,}.*)?\n)+", re.MULTILINE)
_KEY = re.compile(r"([a-z_]+):(?:\s|$)")


def blocks(text: str) -> Iterator[str]:
    """Every block of YAML, without its indentation: fenced as such, or indented and beginning with a key of a
    job or config."""
    for indent, language, body in _FENCED.findall(text):
        if language in ("yaml", "yml"):
            yield re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
    for found in _INDENTED.findall(_FENCED.sub("\n", text)):
        lines = found.strip("\n").splitlines()
        depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        body = "\n".join(line[depth:] for line in lines)
        if (key := _KEY.match(body)) and key[1] in _known():
            yield f"{body}\n"


def _known() -> set[str]:
    job = {field.alias or name for name, field in JobSection.model_fields.items()}
    return job | set(reading._ConfigSection.model_fields)


def wrong(block: str, home: Path) -> str:
    """Why neither a job nor a config has these keys; empty if one does. Lines that are alternatives, each
    with the same key, are read one by one."""
    lines = [line for line in block.splitlines() if line.strip() and not line.startswith("#")]
    keys = [match[1] for line in lines if (match := _KEY.match(line))]
    if len(keys) == len(lines) and len(set(keys)) == 1:
        return "\n".join(filter(None, (_wrong(f"{line}\n", home) for line in lines)))
    return _wrong(block, home)


def _wrong(block: str, home: Path) -> str:
    if block.startswith(" "):  # some entries of a mapping
        tried = [_wrong(f"{key}:\n{block}", home) for key in ("stores", "platforms")]
        return "" if "" in tried else tried[0]
    has = {match[1] for line in block.splitlines() if (match := _KEY.match(line))}
    whole = block + "".join(f"{line}\n" for key, line in JOB.items() if key not in has)
    try:
        spec.parse(whole.encode(), "job", None)
        return ""
    except InputError as error:
        of_job = str(error)
    try:
        reading.parsed(home, _completed(block, has).encode())
        return ""
    except InputError as error:
        of_config = str(error)
    job_keys = len(has & set(JobSection.model_fields))
    return of_job if job_keys >= len(has & set(reading._ConfigSection.model_fields)) else of_config


def _completed(block: str, has: set[str]) -> str:
    """A config in which prices and rules may name the platforms of the examples."""
    types = "{box: {type: docker}, here: {type: process}, kaggle: {type: kaggle}, colab: {type: colab}}"
    lacks = "" if "platforms" in has else f"platforms: {types}\n"
    stores = re.findall(r"^  ([a-z0-9-]+): ?(?:\{|$)", block.partition("stores:")[2], re.MULTILINE)
    home_store = f"home_store: {stores[0]}\n" if len(stores) > 1 and "home_store" not in has else ""
    return block + lacks + home_store
