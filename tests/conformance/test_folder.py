"""What a folder store makes of a folder in which others write, or that is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import NotFound, Rejected
from orchestrator.stores.folder import FolderStore


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_only_a_plain_file_is_an_object(tmp_path: Path, kind: str) -> None:
    """Others may write there. A pipe would never end, and a link leads to another file of this machine."""
    root = tmp_path / "store"
    (tmp_path / "mine").write_text("not in the store")
    (root / "runs").mkdir(parents=True)
    match kind:
        case "pipe":
            os.mkfifo(root / "runs" / "object")
        case "link":
            (root / "runs" / "object").symlink_to(tmp_path / "mine")
        case _:
            (root / "runs" / "object").mkdir()
    store = FolderStore(root)
    assert store.stat("runs/object") is None
    with pytest.raises(NotFound):
        store.get("runs/object", tmp_path / "target")


def test_a_folder_that_is_a_file_or_does_not_exist_is_said(tmp_path: Path) -> None:
    root = tmp_path
    store = FolderStore(root / "there", "mine")
    assert list(store.list("")) == []
    assert f"{root / 'there'} does not exist" in store.absence()
    (root / "there").write_text("a file")
    with pytest.raises(Rejected, match="is not a folder: correct the `path` of the store mine"):
        list(store.list("runs/"))
