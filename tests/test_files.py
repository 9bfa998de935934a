"""Our own files: copies that share nothing, drafts that are cleaned up, logs that follow no link."""

from __future__ import annotations

import ast
import contextlib
import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from orchestrator import files
from orchestrator.files.hashing import CHUNK_BYTES, SYNC_BYTES, hashed_write

UNPRIVILEGED = 65534


def modes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_mode & 0o777 for path in folder.rglob("*")}


def test_a_copied_folder_is_read_only_and_no_mode_is_wider_than_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for name, mode in (("secret", 0o600), ("open", 0o644), ("sub/program", 0o755)):
        (source / name).write_text(name)
        (source / name).chmod(mode)
    files.copy_tree(source, tmp_path / "copy")
    assert modes(tmp_path / "copy") == {"secret": 0o400, "open": 0o400, "sub": 0o500, "sub/program": 0o500}
    assert (tmp_path / "copy" / "sub" / "program").read_text() == "sub/program"
    assert (tmp_path / "copy" / "open").stat().st_ino != (source / "open").stat().st_ino


def test_large_and_sparse_files_are_copied_whole(tmp_path: Path) -> None:
    data = os.urandom((3 << 20) + 7)
    (tmp_path / "source").write_bytes(data)
    files.copy_file(tmp_path / "source", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    with pytest.raises(FileExistsError):
        files.copy_file(tmp_path / "source", tmp_path / "copy")
    with pytest.raises(OSError, match="larger than 10 bytes"):
        files.copy_file(tmp_path / "source", tmp_path / "other", bytes_max=10)
    assert not (tmp_path / "other").exists()


def test_no_link_in_a_tree_is_followed_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (tmp_path / "source" / "folder").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic links"):
        files.copy_tree(tmp_path / "source", tmp_path / "copy")
    files.copy_tree(tmp_path / "source", tmp_path / "asked", follow=True)
    assert (tmp_path / "asked" / "folder" / "secret").read_text() == "secret"


REMOVES = """
import os, sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from orchestrator import files
from orchestrator.files.hashing import CHUNK_BYTES, SYNC_BYTES, hashed_write
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
try:
    files.remove_tree(Path(sys.argv[2]))
except OSError as error:
    sys.exit(str(error))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_a_folder_without_rights_is_removed_and_nothing_behind_its_links(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "kept").touch()
    doomed = tmp_path / "doomed"
    (doomed / "closed" / "below").mkdir(parents=True)
    (doomed / "closed" / "below" / "file").touch()
    (doomed / "link").symlink_to(tmp_path / "victim")
    for path in (doomed, *doomed.rglob("*")):
        os.chown(path, UNPRIVILEGED, UNPRIVILEGED, follow_symlinks=False)
    for path in (doomed / "closed" / "below", doomed / "closed", doomed):
        path.chmod(0)
    repository = str(Path(files.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", REMOVES, str(UNPRIVILEGED), str(doomed), repository],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert not doomed.exists()
    assert (tmp_path / "victim" / "kept").exists()


def test_no_folder_is_too_deep_to_be_removed(tmp_path: Path) -> None:
    levels = sys.getrecursionlimit() + 100
    (tmp_path / "deep").mkdir()
    here = os.open(tmp_path / "deep", os.O_RDONLY)
    for _ in range(levels):  # no path is long enough to reach its end
        os.mkdir("below", dir_fd=here)
        below = os.open("below", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
    files.set_aside(tmp_path / "deep")
    assert list(tmp_path.iterdir()) == []


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    files.remove_tree(tmp_path / "nothing")
    files.set_aside(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_a_log_follows_no_link_and_waits_for_no_pipe(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    os.link(victim, tmp_path / "second-name")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "second-name", "pipe"):
        with pytest.raises(OSError):
            files.open_log(tmp_path / name)
    assert victim.read_text() == "precious"
    (tmp_path / "log").write_text("before\n")
    (tmp_path / "log").chmod(0o644)
    with os.fdopen(files.open_log(tmp_path / "log"), "w") as log:
        log.write("after\n")
    assert (tmp_path / "log").read_text() == "before\nafter\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def odd(path: Path, kind: str) -> None:
    """What a session may put in the place of a file of ours, other than a symbolic link."""
    if kind == "hard link":
        path.hardlink_to(path.with_name("thesis"))
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["hard link", "FIFO", "socket", "folder"])
def test_nothing_is_written_or_read_in_the_place_of_our_file(kind: str, tmp_path: Path) -> None:
    thesis, place = tmp_path / "thesis", tmp_path / "place"
    thesis.write_bytes(b"mine")
    odd(place, kind)
    reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK) if kind == "FIFO" else None
    writers: dict[str, Callable[[], object]] = {
        "append": lambda: files.append(place, b"ours"),
        "written": lambda: files.written(place).__enter__(),
        "open_log": lambda: files.open_log(place),
        "check_locks": lambda: files.check_locks(place, place),
    }
    if kind != "hard link":
        writers["read_plain"] = lambda: files.read_plain(place)
    for name, act in writers.items():
        with contextlib.suppress(OSError) if name == "check_locks" else pytest.raises(OSError):
            act()
    if reader is not None:
        assert os.read(reader, 10) == b""
        os.close(reader)
    assert thesis.read_bytes() == b"mine"
    files.write_whole(place, b"ours") if kind != "folder" else files.set_aside(place)
    assert thesis.read_bytes() == b"mine"


def test_a_folder_that_is_moved_or_linked_after_it_was_opened_is_not_followed(tmp_path: Path) -> None:
    ours = files.guard(tmp_path / "ours")
    victim, log = tmp_path / "victim", ours / "outbox" / "log"
    files.make_folder(log)
    victim.mkdir()
    (victim / "1.log").write_bytes(b"mine")
    with files.draft_file(log) as draft:
        draft.write(b"ours")
        log.rename(tmp_path / "away")
        log.symlink_to(victim)
        draft.replace(log / "1.log")
    assert (victim / "1.log").read_bytes() == b"mine"
    assert (tmp_path / "away" / "1.log").read_bytes() == b"ours"
    for act in (
        lambda: files.append(log / "1.log", b"ours"),
        lambda: files.remove_tree(log / "1.log"),
        lambda: files.set_aside(log / "1.log"),
        lambda: files.write_whole(log / "1.log", b"ours"),
        lambda: files.make_folder(log / "new"),
        lambda: files.rename(log / "1.log", ours / "1.log"),
        lambda: files.read_plain(log / "1.log"),
    ):
        with pytest.raises(OSError, match="a link is in the place of this folder"):
            act()
    assert [(path.name, path.read_bytes()) for path in victim.iterdir()] == [("1.log", b"mine")]


def test_a_whole_file_is_private_and_replaces_a_link_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "note").symlink_to(tmp_path / "victim")
    files.write_whole(tmp_path / "note", b"ours")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "note").read_bytes() == b"ours"
    assert (tmp_path / "note").stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "note"}


def test_of_all_who_make_a_file_at_once_one_does_and_it_is_whole(tmp_path: Path) -> None:
    barrier, made = threading.Barrier(8), []

    def make(number: int) -> None:
        barrier.wait(30.0)
        with contextlib.suppress(FileExistsError):
            files.write_new(tmp_path / "id", b"%d" % number * 10_000)
            made.append(number)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    [winner] = made
    assert (tmp_path / "id").read_bytes() == b"%d" % winner * 10_000
    assert {path.name for path in tmp_path.iterdir()} == {"id"}


def test_a_new_file_replaces_nothing_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # what Linux says on FAT

    monkeypatch.setattr(os, "link", refuse)
    files.write_new(tmp_path / "id", b"first")
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "id", b"second")
    assert (tmp_path / "id").read_bytes() == b"first"
    assert {path.name for path in tmp_path.iterdir()} == {"id"}


FILLS = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from orchestrator import files
from orchestrator.files.hashing import CHUNK_BYTES, SYNC_BYTES, hashed_write
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
files.write_whole(Path(sys.argv[1]), b"x" * 100_000)
"""


def test_a_disk_that_takes_no_more_keeps_the_old_file_and_no_part_of_the_new(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"the old one")
    repository = str(Path(files.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", FILLS, str(tmp_path / "note"), repository],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "File too large" in done.stderr
    assert (tmp_path / "note").read_bytes() == b"the old one"
    assert {path.name for path in tmp_path.iterdir()} == {"note"}


DIES = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from orchestrator import files
from orchestrator.files.hashing import CHUNK_BYTES, SYNC_BYTES, hashed_write
with files.draft_file(Path(sys.argv[1])) as draft, files.draft_folder(Path(sys.argv[1])):
    draft.write(b"half of it")
    print("there", flush=True)
    sys.stdin.read()
"""


def test_a_draft_stays_while_its_writer_lives_and_goes_once_it_was_killed(tmp_path: Path) -> None:
    repository = str(Path(files.__file__).parents[2])
    command = [sys.executable, "-c", DIES, str(tmp_path), repository]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"there\n"
        drafts = set(tmp_path.iterdir())
        assert len(drafts) == 2
        assert all(files.is_locked(path) for path in drafts)
        files.sweep(tmp_path)
        assert set(tmp_path.iterdir()) == drafts
        writer.kill()
    files.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


# Who may sync directly: modules that are shipped alone, and modules that write into a draft folder or link
# files that another module wrote.
SYNCS = (
    "training/layout.py",
    "training/native.py",
    "session/committing.py",
    "session/outbox.py",
    "stores/checkpoints.py",
)


def test_atomic_writing_has_one_home() -> None:
    package = Path(files.__file__).parents[1]
    uses = {
        (path.relative_to(package).as_posix(), ast.unparse(node))
        for path in package.rglob("*.py")
        if path.parent != package / "files"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    banned = {"tempfile.mkstemp", "tempfile.NamedTemporaryFile", "os.link", "os.replace"}
    alone = {("training/writer.py", "os.link"), ("platforms/colab/errand.py", "os.replace")}  # without ours
    assert {use for use in uses if use[1] in banned} == alone
    assert {name for name, what in uses if what in ("os.fsync", "os.fdatasync")} == set(SYNCS)


def test_a_sweep_takes_what_nobody_holds(tmp_path: Path) -> None:
    dead = tmp_path / f"{files.PREFIX}dead"
    dead.mkdir()
    (dead / "file").touch()
    (tmp_path / "kept").touch()
    with files.draft_folder(tmp_path) as living, files.held_folder(tmp_path / "held"):
        files.sweep(tmp_path, prefix="held")
        files.sweep(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"kept", "held", living.name}
    assert {path.name for path in tmp_path.iterdir()} == {"kept"}


def test_what_is_written_in_parts_is_whole_and_its_hash_is_right(tmp_path: Path) -> None:
    sizes = (1, CHUNK_BYTES, SYNC_BYTES + 7, 0, 3 * CHUNK_BYTES, SYNC_BYTES, 5)
    parts = [os.urandom(size) for size in sizes]
    with (tmp_path / "written").open("wb") as file:
        found = hashed_write(map(memoryview, parts), file.fileno())
    assert (tmp_path / "written").read_bytes() == b"".join(parts)
    assert found == hashed_write(map(memoryview, parts), None) == sha256(b"".join(parts)).hexdigest()


def test_a_large_file_is_synced_while_it_is_written_and_no_error_of_that_is_lost() -> None:
    part = memoryview(bytes(SYNC_BYTES))
    with Path(os.devnull).open("wb") as file:
        hashed_write([part], file.fileno())
        with pytest.raises(OSError) as caught:  # it takes bytes, but cannot be synced
            hashed_write([part, part[:1]], file.fileno())
    assert caught.value.errno == errno.EINVAL


def test_small_files_of_any_shape_are_read_or_not_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(b"x" * 5000)
    (tmp_path / "note").write_bytes(b"12.5")
    found = {name: files.read_small(tmp_path / name) for name in ("pipe", "link", "folder", "large", "gone")}
    assert set(found.values()) == {None}
    assert files.read_small(tmp_path / "note") == b"12.5"


def test_a_swept_draft_was_locked_by_nobody(tmp_path: Path) -> None:
    with (
        files.draft_file(tmp_path) as draft,
        draft.path.open("rb") as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
