"""Writing a platform's notebook and its Secret: which files it replaces, and which keys are in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from orchestrator.client import Client, notebooks
from orchestrator.errors import AccessDenied, InputError
from orchestrator.session.signing import Keys
from orchestrator.uplink.mailbox import Secret
from tests.conformance.age_keys import ME

PLAIN: Mapping[str, object] = {"type": "folder", "path": "store"}
SEALED: Mapping[str, object] = {**PLAIN, "encrypt": {"recipients": [ME.public], "identity": "file:identity"}}


class Desk:
    """A home with the platform `book`, and a folder to write the notebook into."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.path = folder / "book.ipynb"
        self.keys_file = self.home / "platforms" / "book" / "keys.json"
        (self.home / "store").mkdir(parents=True)
        (self.home / "identity").write_text(ME.text)

    def keys(self, store: Mapping[str, object] = PLAIN, *, new_keys: bool = False) -> Keys:
        """Those in the Secret that is written now."""
        book = {"type": "notebook", "accelerator": "cpu", "this_machine": True}
        config = {"platforms": {"book": book}, "stores": {"home": store}}
        (self.home / "config.yaml").write_text(yaml.safe_dump(config))
        made = notebooks.write(Client(self.home).wired(), "book", str(self.path), new_keys=new_keys)
        return Secret.parse(made.secret).keys


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_keys_of_a_notebook_stay_until_new_ones_are_asked_for(desk: Desk) -> None:
    first = desk.keys(SEALED)
    assert desk.keys_file.stat().st_mode & 0o777 == 0o600
    assert desk.keys(SEALED) == first
    assert first.signing not in desk.path.read_text()
    second = desk.keys(SEALED, new_keys=True)
    assert second.signing != first.signing
    assert second.identity != first.identity
    assert desk.keys(SEALED) == second


def test_the_keys_follow_the_stores_encryption(desk: Desk) -> None:
    assert desk.keys().identity == ""
    assert desk.keys(SEALED).identity.startswith("AGE-SECRET-KEY-1")
    assert desk.keys().identity == ""


def test_damaged_keys_are_named_and_can_be_replaced(desk: Desk) -> None:
    desk.keys()
    desk.keys_file.write_text("{}")
    with pytest.raises(AccessDenied, match=r"keys.json is damaged: .*--new-secret"):
        desk.keys()
    assert desk.keys(new_keys=True) == desk.keys()


def test_only_a_notebook_that_was_written_here_and_never_edited_is_replaced(desk: Desk) -> None:
    theirs = json.dumps(
        {"nbformat": 4, "metadata": {}, "cells": [{"cell_type": "code", "source": "thesis()"}]}
    )
    desk.path.write_text(theirs)
    with pytest.raises(InputError, match="`--output FILE`, or remove that one first"):
        desk.keys()
    assert desk.path.read_text() == theirs
    assert not desk.keys_file.exists()
    desk.path.unlink()

    keys = desk.keys()
    written = desk.path.read_text()
    run = json.loads(written)
    run["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "Waiting"}]
    desk.path.write_text(json.dumps(run))
    assert desk.keys() == keys
    assert desk.path.read_text() == written

    edited = json.loads(written)
    edited["cells"].append({"cell_type": "code", "source": ["mine()"], "metadata": {}})
    desk.path.write_text(json.dumps(edited))
    with pytest.raises(InputError, match="not the notebook of book as it was written here"):
        desk.keys(new_keys=True)
    assert "mine()" in desk.path.read_text()
    desk.path.unlink()
    desk.path.symlink_to(desk.home / "identity")
    with pytest.raises(InputError, match="exists"):
        desk.keys()
    desk.path.unlink()
    assert desk.keys() == keys, "none of it has drawn new keys"
