"""A store is added to a user's config: what every other line says stays, or nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import config
from orchestrator.client.amending import add_home_store, amended
from orchestrator.config import PlatformConfig, StoreConfig
from orchestrator.errors import InputError

BUCKET = StoreConfig("bucket", "s3", {"bucket": "runs", "endpoint": "http://127.0.0.1:9000"})
FOLDER = StoreConfig("home", "folder", {"path": "store"})

BLOCK = """\
# mine
stores:
  # on the big disk
  home: {type: folder, path: /data}  # do not touch
  # away: {type: folder, path: /net}

home_store: home  # for now
timezone: UTC
"""
BLOCK_AFTER = """\
# mine
stores:
  # on the big disk
  home: {type: folder, path: /data}  # do not touch
  bucket:
    type: s3
    bucket: runs
    endpoint: http://127.0.0.1:9000
  # away: {type: folder, path: /net}

home_store: bucket  # for now
timezone: UTC
"""
# Each can be edited: where the keys are, how they are written, and what surrounds them.
EDITABLE = {
    "block": BLOCK,
    "carriage returns": BLOCK.replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + BLOCK,
    "no end of line": "timezone: UTC",
    "no end of line in stores": "stores:\n  home:\n    type: folder\n    path: /data",
    "comment at the end": "stores:\n  home: {type: folder, path: /data}  # last",
    "deep block": "stores:\n      home:\n            type: folder\n            path: /data\n\n",
    "indented document": "  stores:\n    home: {type: folder, path: /data}\n  timezone: UTC\n",
    "flow": "stores: {home: {type: folder, path: /data}}\nhome_store: home\n",
    "flow, last comma": "stores: {home: {type: folder, path: /data}, }\nhome_store: 'home'\n",
    "flow, many lines": "stores: {\n  home: {type: folder, path: /data} # mine\n  }\ntimezone: UTC\n",
    "flow document": "{stores: {home: {type: folder, path: /data}}, timezone: UTC}\n",
    "empty flow document": "{}\n",
    "no stores": "# rules come later\nplatforms:\n  here: {type: process}\n#  there: {type: docker}\n",
    "no stores but a home store": "home_store: home\n",
    "only comments": "# stores:\n#   home: {type: folder}\n",
    "only a start": "---\n",
    "empty": "",
    "with a start": "---\nstores: {home: {type: folder, path: /data}}\n",
    "text in a block": "stores:\n  home:\n    type: folder\n    path: |\n      /data\n\ntimezone: UTC\n",
    "list in a store": "stores:\n  home:\n    type: folder\n    path: /d\n    x:\n    - 1\ntimezone: UTC\n",
    "commented home store": "stores:\n  home: {type: folder, path: /data}\n# home_store: home\n",
    "quoted keys": "\"stores\":\n  'home': {type: folder, path: /data}\n",
    "already there": "stores:\n  home: {type: folder}\n  bucket: {type: s3, bucket: b}\nhome_store: home\n",
}  # fmt: skip


def written(home: Path, text: str) -> Path:
    (home / "config.yaml").write_bytes(text.encode())
    return home / "config.yaml"


def test_a_config_in_block_style_gets_the_store_and_loses_nothing() -> None:
    assert amended(BLOCK, BUCKET) == BLOCK_AFTER
    assert amended(BLOCK_AFTER, BUCKET) == BLOCK_AFTER


@pytest.mark.parametrize("text", EDITABLE.values(), ids=EDITABLE)
def test_every_line_stays_and_the_store_is_the_home_store(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    before = config.load(tmp_path)
    made = add_home_store(tmp_path, BUCKET)
    after = config.load(tmp_path)
    assert after.home_store == "bucket"
    others = tuple(store for store in after.stores if store.name != "bucket")
    assert others == tuple(store for store in before.stores if store.name != "bucket")
    assert (after.platforms, after.timezone) == (before.platforms, before.timezone)
    assert made.kept == tmp_path / "config.yaml.old-1"
    assert made.kept.read_bytes() == text.encode()
    assert made.kept.stat().st_mode & 0o777 == path.stat().st_mode & 0o777 == 0o600
    now = path.read_bytes().decode()
    assert all(line.split("#")[1] in now for line in text.splitlines() if "#" in line)
    assert ("\r\n" in now) is ("\r\n" in text)
    assert now.replace("\r\n", "").count("\r") == 0
    assert now.startswith("\ufeff") is text.startswith("\ufeff")
    again = add_home_store(tmp_path, BUCKET)
    assert again.kept is None
    assert path.read_bytes().decode() == now


def test_the_default_config_keeps_its_comments(tmp_path: Path) -> None:
    path = config.write_default(tmp_path, (PlatformConfig("here", "process", {"accelerator": "cpu"}),))
    lines = path.read_text().splitlines()
    add_home_store(tmp_path, BUCKET)
    now = path.read_text().splitlines()
    assert [line for line in lines if line not in now] == ["home_store: home"]
    assert config.load(tmp_path).stores == (FOLDER, BUCKET)


def test_the_default_store_is_written_out_because_runs_are_on_it(tmp_path: Path) -> None:
    written(tmp_path, "timezone: UTC\n")
    add_home_store(tmp_path, BUCKET)
    assert config.load(tmp_path).stores == (FOLDER, BUCKET)


UNSAFE = {
    "tabs": "stores:\n\thome: {type: folder}\n",
    "not YAML": "stores: [\n",
    "not UTF-8": "timezone: \udcff\n",
    "two documents": "timezone: UTC\n---\n{}\n",
    "after the end": "timezone: UTC\n...\n",
    "aliases": "platforms: {a: &a {type: process}, b: *a}\n",
    "a wrong key": "store: {}\n",
    "a list": "- stores\n",
    "stores without a value": "stores:  # none yet\ntimezone: UTC\n",
    "home store without a value": "home_store:\ntimezone: UTC\n",
    "nothing, spelled out": "null\n",
}  # fmt: skip


@pytest.mark.parametrize("text", UNSAFE.values(), ids=UNSAFE)
def test_what_cannot_be_edited_safely_stays_and_the_lines_are_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    data = text.encode("utf-8", "surrogateescape")
    path.write_bytes(data)
    with pytest.raises(InputError) as told:
        add_home_store(tmp_path, BUCKET)
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]
    assert "bucket: runs" in str(told.value)
    assert "home_store: bucket" in str(told.value)


def test_a_config_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "home").mkdir()
    real = tmp_path / "dotfiles" / "config.yaml"
    real.write_text(BLOCK)
    (tmp_path / "home" / "config.yaml").symlink_to(real)
    made = add_home_store(tmp_path / "home", BUCKET)
    assert (tmp_path / "home" / "config.yaml").is_symlink()
    assert real.read_text() == BLOCK_AFTER
    assert made.kept == tmp_path / "home" / "config.yaml.old-1"


_SPACES = st.integers(1, 6).map(lambda count: " " * count)
_NOTE = st.sampled_from(["", "  # note", "   "])
_LINES = st.sampled_from(["", "\n", "# a: {b}\n", "\n\n  # stores: none\n"])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    pad=_SPACES,
    deeper=_SPACES,
    note=_NOTE,
    between=_LINES,
    flow=st.booleans(),
    last=st.booleans(),
    end=st.sampled_from(["\n", ""]),
    newline=st.sampled_from(["\n", "\r\n"]),
)
def test_any_layout_keeps_its_meaning(
    tmp_path: Path,
    pad: str,
    deeper: str,
    note: str,
    between: str,
    flow: bool,
    last: bool,
    end: str,
    newline: str,
) -> None:
    one = "{type: folder, path: /data}" if flow else f"\n{pad}{deeper}type: folder\n{pad}{deeper}path: /data"
    stores = f"stores:{note if note.strip() else ''}\n{pad}home: {one}{note}\n{between}"
    rest = f"timezone: UTC{note}\n{between}"
    text = (rest + stores if last else stores + rest).removesuffix("\n") + end
    written(tmp_path, text.replace("\n", newline))
    before = config.load(tmp_path)
    add_home_store(tmp_path, BUCKET)
    after = config.load(tmp_path)
    assert after.stores == (*before.stores, BUCKET)
    assert after.home_store == "bucket"
