"""The outbox alone: parts, retention, and commits that fail half-way."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from pathlib import Path

import pytest

from orchestrator import files
from orchestrator.agent.folder import Folder
from orchestrator.clock import SystemClock
from orchestrator.core import bounds, checkpoint
from orchestrator.core.checkpoint import Manifest
from orchestrator.core.job import Best, Keep
from orchestrator.session.committing import Outbox, Unfit, remove, saved_in
from tests.agent.sessions import Stay, new_order


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.lay_out()
    return folder


def outbox_of(folder: Folder, *, keep: Keep | None = None, part_bytes: int = 1 << 28) -> Outbox:
    order = new_order("train.py", keep=keep or Keep())
    return Outbox(folder, order, "abc", {"threads": "2"}, SystemClock(), part_bytes)


def saved(folder: Folder, step: int, **files: bytes) -> Path:
    path = folder.checkpoints / f"step-{step}"
    path.mkdir()
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return path


def blobs(folder: Folder) -> set[str]:
    return {path.name for path in (folder.outbox / "blobs").iterdir()}


def on_disk(folder: Folder) -> list[Manifest]:
    return Stay(folder.root).manifests()


def test_metrics_beyond_their_bound_cost_the_metrics_alone(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, said = outbox_of(folder), b'{"loss": 1.0}'
    monkeypatch.setattr(bounds, "METRICS_BYTES_MAX", len(said))
    fits = outbox.commit(saved(folder, 1, metrics__json=said))
    flood = outbox.commit(saved(folder, 2, metrics__json=said + b" "))
    assert fits is not None
    assert flood is not None
    assert (fits.metrics, flood.metrics) == ({"loss": 1.0}, {})


@pytest.mark.parametrize(
    ("said", "deterministic"),
    [
        (b'{"deterministic": true}', True),
        (b'{"deterministic": true, "threads": "64", "other": [1]}', True),
        (b'{"deterministic": false}', False),
        (b'{"deterministic": "true"}', False),
        (b'{"deterministic": 1}', False),
        (b'["deterministic"]', False),
        (b"true", False),
        (b"", False),
        (b"\xff{", False),
        (b"[" * 60_000, False),
        (b'{"deterministic": true}' + b" " * bounds.ENVIRONMENT_BYTES_MAX, False),
    ],
)
def test_only_a_plain_yes_makes_a_checkpoint_deterministic(
    folder: Folder, said: bytes, deterministic: bool
) -> None:
    manifest = outbox_of(folder).commit(saved(folder, 1, environment__json=said))
    assert manifest is not None
    assert manifest.environment == {"threads": "2"} | ({"deterministic": "true"} if deterministic else {})


def test_what_one_checkpoint_says_is_not_said_of_the_next(folder: Folder) -> None:
    outbox = outbox_of(folder)
    outbox.commit(saved(folder, 1, environment__json=b'{"deterministic": true}'))
    path = saved(folder, 2, state=b"x")
    (path / "environment.json").mkdir()
    (path / "environment.json/deterministic").write_text("true")
    outbox.commit(path)
    assert [m.environment.get("deterministic") for m in outbox.manifests] == ["true", None]


def test_a_large_file_is_stored_in_parts_that_add_up_to_it(folder: Folder) -> None:
    path = saved(folder, 1, small=b"s")
    with (path / "large").open("wb") as file:
        file.truncate(300_000)
        file.seek(123_456)
        file.write(b"not all zeros")
    whole = (path / "large").read_bytes()
    manifest = outbox_of(folder, part_bytes=1 << 17).commit(path)
    assert manifest is not None
    [entry] = [entry for entry in manifest.files if entry.path == "large"]
    assert [part.size for part in entry.parts] == [1 << 17, 1 << 17, 300_000 - (1 << 18)]
    assert Stay(folder.root).content(manifest, "large") == whole
    assert on_disk(folder) == [manifest]


def test_a_sparse_file_above_256_mib_is_split_at_256_mib(folder: Folder) -> None:
    path = saved(folder, 1)
    with (path / "large").open("wb") as file:
        file.truncate(300_000_000)
    manifest = outbox_of(folder).commit(path)
    assert manifest is not None
    assert [part.size for part in manifest.files[0].parts] == [1 << 28, 300_000_000 - (1 << 28)]
    assert on_disk(folder) == [manifest]


def test_what_did_not_change_is_stored_once(folder: Folder) -> None:
    outbox = outbox_of(folder)
    for step in (1, 2):
        outbox.commit(saved(folder, step, frozen=b"frozen", trained=str(step).encode()))
    assert len(on_disk(folder)) == 2
    assert len(blobs(folder)) == 3


def test_retention_keeps_the_newest_and_the_best_and_drops_unneeded_blobs(folder: Folder) -> None:
    outbox = outbox_of(folder, keep=Keep(last=1, best=Best("score")))
    for step, score in enumerate([1, 9, 2, 3, 4], start=1):
        outbox.commit(saved(folder, step, metrics__json=b'{"score": %d}' % score, weights=b"%d" % step))
    assert [m.ref.step for m in on_disk(folder)] == [2, 4, 5]  # at least two, and the best one
    assert [m.ref.step for m in outbox.manifests] == [2, 4, 5]
    assert blobs(folder) == {sha256 for m in on_disk(folder) for sha256 in m.blobs()}


def test_a_commit_that_failed_leaves_the_save_and_nothing_else_and_succeeds_later(folder: Folder) -> None:
    outbox = outbox_of(folder)
    kept = outbox.commit(saved(folder, 1, weights=b"one"))
    path = saved(folder, 2, weights=b"two", zzz=b"last")
    (folder.outbox / "checkpoints" / f"{2:010d}-g01-abc").write_bytes(b"in the way")
    with pytest.raises(OSError) as raised:
        outbox.commit(path)
    assert raised.value.errno == errno.EEXIST
    assert on_disk(folder) == [kept]
    assert blobs(folder) == {hashlib.sha256(b"one").hexdigest()}
    assert (path / "weights").read_bytes() == b"two"
    (folder.outbox / "checkpoints" / f"{2:010d}-g01-abc").unlink()
    assert outbox.commit(path) is not None
    assert [m.ref.step for m in on_disk(folder)] == [1, 2]
    assert not path.exists()


@pytest.mark.parametrize(
    "kind", ["empty", "symbolic link", "pipe", "backslash in a name", "no text in a name", "taken away"]
)
def test_what_can_be_no_checkpoint_is_unfit(folder: Folder, kind: str) -> None:
    path = saved(folder, 1)
    match kind:
        case "symbolic link":
            (path / "link").symlink_to("/etc/hostname")
        case "pipe":
            os.mkfifo(path / "pipe")
        case "backslash in a name":
            (path / "a\\b").write_bytes(b"x")
        case "no text in a name":
            (path / "\udcff").write_bytes(b"x")
        case "taken away":
            path.rmdir()
    with pytest.raises(Unfit):
        outbox_of(folder).commit(path)
    assert on_disk(folder) == []


def test_names_that_are_odd_are_kept_as_they_are(folder: Folder) -> None:
    path = saved(folder, 1)
    names = ["-rf", "a\nb", "\x1b]52;c;cm0=\x07", "\u202etxt.exe", "trailing "]
    for name in names:
        (path / name).write_bytes(b"x")
    manifest = outbox_of(folder).commit(path)
    assert manifest is not None
    assert set(names) <= {entry.path for entry in manifest.files}
    assert on_disk(folder) == [manifest]


def test_only_renamed_saves_are_found(folder: Folder) -> None:
    for name in ("step-7", ".tmp-step-8", "step-x", "step-", "best"):
        (folder.checkpoints / name).mkdir()
    (folder.checkpoints / "step-9").write_bytes(b"a file")
    (folder.checkpoints / "step-10").symlink_to("step-7")
    assert [step for step, _ in saved_in(folder.checkpoints)] == [7]


@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        (b'{"mrr": 0.5, "n": 3, "nan": NaN, "inf": Infinity, "t": true, "s": "x", "l": [1]}',
         {"mrr": 0.5, "n": 3.0}),
        (b'{"huge": 1%s}' % (b"0" * 400), {}),
        (b'{"\\ud800": 1, "n": 2}', {"n": 2.0}),
        (b"[1]", {}),
        (b"not json", {}),
        (b"\xff", {}),
    ],
)  # fmt: skip
def test_metrics_are_the_finite_numbers(folder: Folder, text: bytes, metrics: dict[str, float]) -> None:
    manifest = outbox_of(folder).commit(saved(folder, 1, metrics__json=text))
    assert manifest is not None
    assert manifest.metrics == metrics
    assert checkpoint.decode(manifest.name, manifest.encode()) == manifest


def test_folders_without_an_end_are_no_checkpoint(folder: Folder) -> None:
    path = saved(folder, 1, weights=b"one")
    here = os.open(path, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 100):
        os.mkdir("below", dir_fd=here)
        below = os.open("below", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    outbox = outbox_of(folder)
    with pytest.raises(Unfit, match="step-1 are nested too deeply"):
        outbox.commit(path)
    remove(path)
    assert not path.exists(), "the command may save this step again"
    files.remove_tree(folder.checkpoints)
