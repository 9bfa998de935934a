"""What is said of a failure whose file stayed at home."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.freeze import left_out
from orchestrator.freeze.bundle import commit, frozen
from orchestrator.freeze.left_out import LeftOut, missed

LEFT = (
    LeftOut("always: the history of git", (".git/",), 1, default=True),
    LeftOut("by default: a Python environment", ("venv/",), 1, default=True),
    LeftOut(".gitignore: *.json", ("config.json", "conf/model.json", "local_settings.py"), 3),
    LeftOut(".gitignore: data/", ("data/",), 1),
    LeftOut(".orchestratorignore: *.npy", ("arrays/a.npy", "arrays/b.npy"), 2),
)
ERRNO = "exit code 1: FileNotFoundError: [Errno 2] No such file or directory: "


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (f"{ERRNO}'config.json'", ".gitignore: *.json"),
        (f"{ERRNO}'./conf/../conf/model.json'", ".gitignore: *.json"),
        (f"{ERRNO}'/x/platforms/here/demo-s01/work/source/config.json'", ".gitignore: *.json"),
        (f"{ERRNO}'data'", ".gitignore: data/"),
        (f"{ERRNO}'data/train/0.png'", ".gitignore: data/"),
        (f"{ERRNO}'arrays'", ".orchestratorignore: *.npy"),
        (f"{ERRNO}'arrays/*.npy'", ".orchestratorignore: *.npy"),
        ("exit code 1: FileNotFoundError: arrays/a.npy not found.", ".orchestratorignore: *.npy"),  # numpy
        ("FileNotFoundError: [Errno 2] Unable to synchronously open file (unable to open file: name = "
         "'data/x.h5', errno = 2, error message = 'No such file or directory')", ".gitignore: data/"),
        ("FileNotFoundError: No such file or directory: \"data/model.safetensors\"", ".gitignore: data/"),
        ("exit code 1: OSError: ./data/model is not a local folder and is not a valid model identifier",
         ".gitignore: data/"),
        ("soundfile.LibsndfileError: Error opening 'data/a.wav': System error.", ".gitignore: data/"),
        ("exit code 1: cat: config.json: No such file or directory", ".gitignore: *.json"),
        ("exit code 127: ./data/run.sh: not found", ".gitignore: data/"),
        ("exit code 1: ModuleNotFoundError: No module named 'local_settings'", ".gitignore: *.json"),
        ("exit code 1: NotADirectoryError: [Errno 20] Not a directory: 'venv/bin'", "by default: a Python"),
    ],
)  # fmt: skip
def test_a_missed_file_is_named_with_its_rule_and_both_remedies(message: str, rule: str) -> None:
    told = missed(message, LEFT)
    assert f"({rule}" in told, told
    assert "into .orchestratorignore" in told
    assert "`inputs`" in told


@pytest.mark.parametrize(
    "message",
    [
        f"{ERRNO}'../configs/a.yaml'",
        f"{ERRNO}'../../x'",
        "exit code 1: cat: ../a.txt: No such file or directory",
    ],
)
def test_what_lies_outside_is_said_to(message: str) -> None:
    for known in (LEFT, ()):
        told = missed(message, known)
        assert "lies outside `source`" in told
        assert "`inputs`" in told


def test_the_history_of_git_has_a_remedy_of_its_own() -> None:
    assert "ORCHESTRATOR_GIT_COMMIT" in missed(f"{ERRNO}'.git/HEAD'", LEFT)


@pytest.mark.parametrize(
    "message",
    [
        f"{ERRNO}'checkpoints/last.pt'",
        f"{ERRNO}'/data/train.csv'",
        "exit code 1: KeyError: 'data'",
        "exit code 1: ValueError: column 'data' not found",
        "exit code 1: json.decoder.JSONDecodeError: Expecting value: line 1 of config.json",
        "exit code 1: FileNotFoundError: could not find the data of https://x.org/data/a",
        "exit code 1: RuntimeError: out/config.json is full",
        "",
    ],
)
def test_other_failures_are_left_as_they_are(message: str) -> None:
    assert missed(message, LEFT) == ""


def test_the_note_lies_beside_the_archive_and_is_of_the_newest_submit(tmp_path: Path) -> None:
    source, into = tmp_path / "source", tmp_path / "bundles"
    source.mkdir()
    (source / "a.py").write_text("a\n")
    (source / ".orchestratorignore").write_text("*.json\n")
    (source / "config.json").write_text("{}\n")
    archive = into / f"{frozen(source, into).sha256}.tar.gz"
    [noted] = left_out.read(archive)
    assert (noted.rule, noted.paths) == (".orchestratorignore: *.json", ("config.json",))
    (source / "config.json").unlink()
    assert into / f"{frozen(source, into).sha256}.tar.gz" == archive
    assert left_out.read(archive) == ()
    for damage in (b"{", b"[1]", b'[["a"]]', b"[" * 100_000, b"\xff"):
        archive.with_name(archive.name.replace(".tar.gz", ".left-out.json")).write_bytes(damage)
        assert left_out.read(archive) == ()


def git(folder: Path, *words: str) -> str:
    given = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], env=given, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_commit_of_a_source_is_marked_if_files_have_changed(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    assert commit(tmp_path) == ""
    (tmp_path / "a.py").write_text("a\n")
    git(tmp_path, "init", "-q")
    assert commit(code) == "", "no commit yet"
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-qm", "a")
    git(tmp_path, "tag", "-m", "v1", "v1")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "new.py").write_text("not tracked\n")
    assert commit(code) == head
    (tmp_path / "a.py").write_text("b\n")
    assert commit(code) == f"{head}-dirty"
