"""The reference pages leave out no key, option, command or method, and their examples are valid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator import spec
from orchestrator.cli import arguments
from orchestrator.client import Client
from orchestrator.config import reading
from orchestrator.spec import document
from orchestrator.spec.schema import JobSection
from scripts import generate_docs, meanings, reference

JOB = {
    "name": "example",
    "source": ".",
    "command": "python train.py",
    "work": {"total": 20000, "global_batch": 64},
    "profiles": {"cpu": {"micro_batch": 8, "precision": "fp32"}},
}


EFFECTS = ("require", "avoid", "prefer")


def with_example(given: dict[str, Any], path: str, told: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """The document with the example of this key in it, inside the examples of the keys above it."""
    *above, last = path.replace("[]", ".[]").split(".")
    place: Any = given
    for number, part in enumerate(above):
        if part == "[]":
            place = place[0]
        elif part == "*":
            place = place[next(iter(place))]
        else:
            if not isinstance(place.get(part), dict | list):
                found = example(".".join(above[: number + 1]).replace(".[]", "[]"), told)
                place[part] = found if isinstance(found, dict | list) else {}
            place = place[part]
    if last in EFFECTS:  # a rule has one
        for each in EFFECTS:
            place.pop(each, None)
    place[last] = example(path, told)
    return given


def example(path: str, told: dict[str, tuple[str, str]]) -> Any:
    tree = document.read(f"key: {told[path][1]}\n".encode(), "example").tree
    assert isinstance(tree, dict), told[path]
    return tree["key"]


@pytest.mark.parametrize("path", meanings.JOB)
def test_the_example_of_a_key_of_the_job_is_valid(path: str) -> None:
    text = json.dumps(with_example(json.loads(json.dumps(JOB)), path, meanings.JOB))
    assert spec.parse(text.encode(), "job.yaml", None).job.name


@pytest.mark.parametrize("path", meanings.CONFIG)
def test_the_example_of_a_key_of_the_config_is_valid(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_DATABASE", "postgresql://localhost/orchestrator")
    text = json.dumps(with_example({}, path, meanings.CONFIG))
    assert reading.parsed(tmp_path, text.encode()).home == tmp_path


def test_every_key_and_option_has_a_meaning() -> None:
    assert reference.unexplained() == [], "add it to scripts/meanings.py"


def test_nothing_is_explained_that_does_not_exist() -> None:
    job = {key.path for key in reference.keys(JobSection)}
    config = {key.path for key in reference.keys(reading._ConfigSection)}
    assert sorted({*meanings.JOB} - job) == []
    assert sorted({*meanings.CONFIG} - config) == []


def test_every_command_and_option_is_on_the_page() -> None:
    page = generate_docs.pages()["commands.md"]
    for command in arguments.COMMANDS:
        text = page.partition(f"\n## {command.name}\n")[2].partition("\n## ")[0]
        for each in (command, *command.parts):
            for option in (*each.options, *each.one_of):
                assert option.settings["help"].replace("%%", "%") in text, (command.name, option.flags)
    assert {*reference.PAGES} <= {command.name for command in arguments.COMMANDS}
    assert [name for name in reference.PAGES.values() if not (generate_docs.DOCS / name).exists()] == []


def test_every_public_method_of_the_client_is_on_the_page() -> None:
    page = generate_docs.pages()["python-reference.md"]
    methods = [name for name in vars(Client) if not name.startswith("_")]
    assert [name for name in methods if not re.search(rf"### `client\.{name}(\(\))?`", page)] == []
    assert "### `training.steps()`" in page
    assert "### `client.schedules.register()`" in page
