"""Which files of a source folder are bundled, which are not, and that the content names the archive."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from orchestrator.core import credentials
from orchestrator.errors import InputError
from orchestrator.freeze import bundle
from orchestrator.freeze.bundle import freeze, frozen
from orchestrator.freeze.left_out import named


def put(root: Path, name: str, content: str | bytes = "x") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def names(into: Path, sha256: str) -> list[str]:
    with tarfile.open(into / f"{sha256}.tar.gz") as archive:
        return archive.getnames()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "bundles"


# --- Content-addressed ----------------------------------------------------------------------------------


def test_the_same_files_are_the_same_bytes_whatever_their_times_order_and_place(tmp_path: Path) -> None:
    first, second, into = tmp_path / "one", tmp_path / "two", tmp_path / "bundles"
    for name in ("a.py", "pkg/b.py", "pkg/deep/c.txt"):
        put(first, name, name)
    for name in ("pkg/deep/c.txt", "a.py", "pkg/b.py"):
        os.utime(put(second, name, name), (1, 1))
    (second / "pkg" / "empty").mkdir()
    one = freeze(first, into)
    assert one == freeze(second, into) == freeze(first, tmp_path / "elsewhere")
    data = (into / f"{one}.tar.gz").read_bytes()
    assert hashlib.sha256(data).hexdigest() == one
    assert files(into) == [f"{one}.tar.gz"]
    assert names(into, one) == ["a.py", "pkg/b.py", "pkg/deep/c.txt"]
    put(second, "a.py", "other")
    assert freeze(second, into) != one


def test_another_process_with_another_umask_and_hash_seed_makes_the_same_bytes(
    source: Path, into: Path
) -> None:
    for number in range(20):
        put(source, f"m{number}/x{number}.py", str(number))
    here = freeze(source, into)
    script = (
        "import os, sys; from pathlib import Path; os.umask(0o077);"
        "from orchestrator.freeze.bundle import freeze;"
        "sys.stdout.write(freeze(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    there = subprocess.run(
        [sys.executable, "-c", script, str(source), str(into)], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[1], env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"},
    ).stdout  # fmt: skip
    assert there == here


def test_contents_and_the_executable_bit_survive(source: Path, into: Path) -> None:
    put(source, "run.sh", "#!/bin/sh\n").chmod(0o750)
    put(source, "data.bin", bytes(range(256)) * 1000)
    put(source, "ünïcode/" + "long" * 30 + "/" + "name" * 30, "deep")
    sha256 = freeze(source, into)
    with tarfile.open(into / f"{sha256}.tar.gz") as archive:
        found = {member.name: member for member in archive}
        assert {member.uid for member in archive} == {0}
        assert {member.mtime for member in archive} == {0}
        assert oct(found["run.sh"].mode) == "0o755"
        assert oct(found["data.bin"].mode) == "0o644"
        content = archive.extractfile("data.bin")
        assert content is not None
        assert content.read() == bytes(range(256)) * 1000
    assert "ünïcode/" + "long" * 30 + "/" + "name" * 30 in found


def test_without_a_source_only_the_further_files_go_along(tmp_path: Path, into: Path) -> None:
    requirements = put(tmp_path, "requirements.txt", "numpy\n")
    sha256 = freeze(None, into, also={".orchestrator/requirements.txt": requirements})
    assert names(into, sha256) == [".orchestrator/requirements.txt"]
    assert names(into, freeze(None, into)) == []


def test_a_further_file_goes_along_although_git_ignores_it(source: Path, into: Path) -> None:
    put(source, ".gitignore", "requirements.txt\n")
    requirements = put(source, "requirements.txt", "numpy\n")
    assert names(into, freeze(source, into)) == [".gitignore"]
    sha256 = freeze(source, into, also={"requirements.txt": requirements})
    assert names(into, sha256) == [".gitignore", "requirements.txt"]


# --- .gitignore -----------------------------------------------------------------------------------------

LAYOUT = {
    ".gitignore": "*.log\nbuild/\n/top.txt\ndata/*\n!data/keep.csv\n**/cache\n\\#odd\ntrailing\\ \n",
    "a.log": "", "a.py": "", "top.txt": "", "sub/top.txt": "", "build/x": "", "sub/build/x": "",
    "sub/build.py": "",
    "data/big.bin": "", "data/keep.csv": "", "sub/cache/x": "", "cache": "", "#odd": "", "trailing ": "",
    "sub/.gitignore": "!b.log\n*.tmp\n/only-here\n", "sub/a.log": "", "sub/b.log": "", "b.log": "",
    "sub/x.tmp": "",
    "x.tmp": "", "sub/only-here": "", "sub/deep/only-here": "", "sub/deep/.gitignore": "*\n!.gitignore\n",
    "sub/deep/y": "", "build-not/x": "",
}  # fmt: skip


def test_gitignore_is_honoured_at_every_level_as_git_does(source: Path, into: Path) -> None:
    for name, content in LAYOUT.items():
        put(source, name, content)
    expected = {
        ".gitignore", "a.py", "sub/top.txt", "sub/build.py", "data/keep.csv", "sub/.gitignore", "sub/b.log",
        "x.tmp", "sub/deep/.gitignore", "build-not/x",
    }  # fmt: skip
    assert set(names(into, freeze(source, into))) == expected
    if shutil.which("git"):
        run = ["git", "-C", str(source), "-c", "core.excludesFile=/dev/null"]
        subprocess.run(["git", "init", "-q", str(source)], check=True)
        listed = subprocess.run(
            [*run, "ls-files", "--others", "--exclude-standard", "-z"], capture_output=True, check=True
        )
        assert set(listed.stdout.decode().rstrip("\0").split("\0")) == expected


@pytest.mark.parametrize("name", [".gitignore", ".orchestratorignore"])
@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfsecret.txt\n",
        b"\xef\xbb\xbf# first\r\nsecret.txt\r\n",
        b"secret.txt\r\n",
        b"secret.txt\r",
    ],
)
def test_a_file_of_patterns_is_read_as_git_reads_it(
    source: Path, into: Path, name: str, content: bytes
) -> None:
    put(source, name, content)
    put(source, "secret.txt")
    assert names(into, freeze(source, into)) == [name]


def test_only_a_line_feed_ends_a_pattern(source: Path, into: Path) -> None:
    put(source, ".gitignore", "a\x0cb\nc\u2028d\n")
    for name in ("b", "c"):
        put(source, name)
    assert names(into, freeze(source, into)) == [".gitignore", "b", "c"]


def test_a_huge_file_of_patterns_is_refused(source: Path, into: Path) -> None:
    put(source, ".gitignore")
    with (source / ".gitignore").open("r+b") as file:
        file.truncate(10**9)
    with pytest.raises(InputError, match=r"\.gitignore: larger than 1000 kB"):
        freeze(source, into)


def test_a_package_with_a_name_of_something_else_goes_along(source: Path, into: Path) -> None:
    sent = ["build/x.py", "env/__init__.py", "env/maze.py", "lib/wandb/__init__.py", "lib/wandb/a.py",
            "venv/__init__.py"]  # fmt: skip
    for name in (*sent, "wandb/run-1/x", "pkg/venv/__init__.py", "pkg/venv/pyvenv.cfg"):
        put(source, name)
    assert names(into, freeze(source, into)) == sent


def test_gitignore_files_above_count_up_to_the_repository(tmp_path: Path, into: Path) -> None:
    put(tmp_path, ".gitignore", "*.py\n")  # above the repository: not ours
    put(tmp_path, "repo/.git/HEAD", "ref: x\n")
    put(tmp_path, "repo/.gitignore", "*.log\n/jobs/mine/out/\n")
    put(tmp_path, "repo/jobs/.gitignore", "!kept.log\n")
    source = tmp_path / "repo" / "jobs" / "mine"
    for name in ("a.py", "a.log", "kept.log", "out/x", "deep/out/x"):
        put(source, name)
    assert names(into, freeze(source, into)) == ["a.py", "deep/out/x", "kept.log"]


def test_a_source_that_its_repository_ignores_goes_along_all_the_same(tmp_path: Path, into: Path) -> None:
    put(tmp_path, "repo/.git/HEAD")
    put(tmp_path, "repo/.gitignore", "scratch/\n*.log\n")
    put(tmp_path, "repo/scratch/job/a.py")
    assert names(into, freeze(tmp_path / "repo" / "scratch" / "job", into)) == ["a.py"]


def test_git_and_bytecode_never_go_along(source: Path, into: Path) -> None:
    for name in (".git/config", "sub/.git", "pkg/__pycache__/a.pyc", "pkg/a.py", ".github/ci.yml"):
        put(source, name)
    assert names(into, freeze(source, into)) == [".github/ci.yml", "pkg/a.py"]


def test_the_folder_of_bundles_does_not_swallow_itself(source: Path) -> None:
    put(source, "a.py")
    into = source / "home" / "bundles"
    first = freeze(source, into)
    assert freeze(source, into) == first
    assert names(into, first) == ["a.py"]


# --- Refused --------------------------------------------------------------------------------------------


def test_too_large_a_source_names_the_largest(source: Path, into: Path) -> None:
    for name, size in {"data/a.bin": 70, "data/b.bin": 40, "weights.pt": 5}.items():
        with put(source, name).open("wb") as stream:
            stream.truncate(size * 1_000_000)
    with pytest.raises(InputError) as caught:
        freeze(source, into)
    told = str(caught.value)
    assert "115 MB" in told
    assert "limit is 100 MB" in told
    assert told.index("data/ 110 MB") < told.index("data/a.bin 70.0 MB") < told.index("weights.pt 5.0 MB")
    put(source, ".gitignore", "data/\n")
    assert names(into, freeze(source, into)) == [".gitignore", "weights.pt"]


CREDENTIALS = (
    "kaggle.json", "certs/server.pem", "id_rsa", "keys/id_ed25519", ".env", ".env.local", "prod.env",
    ".netrc", "credentials.json", "Token.JSON", "client_secret_123.json", "service-account-x.json",
    ".aws/credentials", ".npmrc", ".pypirc", ".git-credentials", "a.key", "b.p12",
)  # fmt: skip


def test_files_that_look_like_credentials_are_refused_all_at_once(source: Path, into: Path) -> None:
    for name in (*CREDENTIALS, ".env.example", "tokenizer.json", "environment.py", "keys.py", "id_rsa.pub"):
        put(source, name)
    with pytest.raises(InputError, match="source_allow") as caught:
        freeze(source, into)
    assert f"and {len(CREDENTIALS) - 10} more" in str(caught.value)
    assert ".env.example" not in str(caught.value)
    sha256 = freeze(source, into, allow=CREDENTIALS)
    assert set(CREDENTIALS) < set(names(into, sha256))
    assert [name for name in CREDENTIALS if not credentials.in_name(name)] == []


@pytest.mark.parametrize(
    "content",
    ["-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n", "-----BEGIN PRIVATE KEY-----\n",
     '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\nabc"}'],
)  # fmt: skip
def test_keys_under_harmless_names_are_refused_by_their_content(
    source: Path, into: Path, content: str
) -> None:
    put(source, "notes.txt", content)
    with pytest.raises(InputError, match=r"credentials: notes\.txt") as caught:
        freeze(source, into)
    assert "abc" not in str(caught.value)
    assert files(into) == []
    freeze(source, into, allow=["notes.txt"])


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (f"aws = AKIA{'Q7ZD' * 4}\n", "an AWS access key"),
        (f"push with ghp_{'aB3' * 12}\n", "a GitHub token"),
        (f"TOKEN=hf_{'aBcDeF' * 6}\n", "a Hugging Face token"),
        (f'{{"username": "me", "key": "{"0f" * 16}"}}\n', "a Kaggle key"),
        (f"key = 'sk-proj-{'a1B_' * 8}'\n", "an API key"),
        (f"-----BEGIN EC PRIVATE KEY-----\n{'MHcC' * 16}\n", "a private key"),
    ],
)
def test_tokens_in_the_middle_of_a_file_are_refused_with_their_line(
    source: Path, into: Path, content: str, kind: str
) -> None:
    put(source, "notes.txt", f"# notes\n{content}")
    with pytest.raises(InputError) as caught:
        freeze(source, into)
    assert f"notes.txt:2 ({kind})" in str(caught.value)
    assert content.split()[-1] not in str(caught.value)
    freeze(source, into, allow=["notes.txt"])


@pytest.mark.parametrize(
    "harmless",
    ["AKIAIOSFODNN7EXAMPLE", "pip install sk-learn-compatible-estimators-for-everyone",
     "hf_hub_download_of_model", "re.compile(r'-----BEGIN [A-Z ]*PRIVATE KEY-----')",
     "see -----BEGIN PRIVATE KEY----- there",
     "git+https://github.com/a/b@v1", "risk-" + "a1" * 30],
)  # fmt: skip
def test_what_only_starts_like_a_token_goes_along(source: Path, into: Path, harmless: str) -> None:
    put(source, "notes.txt", f"# notes\n{harmless}\n")
    assert names(into, freeze(source, into)) == ["notes.txt"]


def test_a_pattern_that_would_take_hours_is_refused(source: Path, into: Path) -> None:
    put(source, "a" * 200)
    put(source, ".gitignore", "# * * * * * * * *\nreport.[0-9]*.[0-9]*.[0-9]*.[0-9]*.json\n")
    freeze(source, into)
    for pattern in ("*a" * 30 + "b", "**/a/" * 30 + "b"):
        put(source, ".gitignore", f"*.log\n{pattern}\n")
        with pytest.raises(InputError, match=r"\.gitignore:2: too many wildcards"):
            freeze(source, into)


def test_links_inside_go_along_and_still_lead_there(source: Path, into: Path, tmp_path: Path) -> None:
    put(source, "real/a.py", "print(1)")
    (source / "real" / "near").symlink_to("a.py")
    (source / "up").mkdir()
    (source / "up" / "absolute").symlink_to(source / "real" / "a.py")
    (source / "folder").symlink_to("real")
    (source / "chain").symlink_to("folder/near")
    sha256 = freeze(source, into)
    with tarfile.open(into / f"{sha256}.tar.gz") as archive:
        links = {member.name: member.linkname for member in archive if member.issym()}
        archive.extractall(tmp_path / "out", filter="data")
    assert links == {
        "chain": "real/a.py", "folder": "real", "real/near": "a.py", "up/absolute": "../real/a.py",
    }  # fmt: skip
    assert (tmp_path / "out" / "up" / "absolute").read_text() == "print(1)"


def test_links_that_leave_lead_nowhere_or_loop_are_refused_all_at_once(source: Path, into: Path) -> None:
    put(source.parent, "outside.txt")
    put(source, "ignored.txt")
    put(source, ".gitignore", "ignored.txt\nforgiven\n")
    (source / "leaves").symlink_to("../outside.txt")
    (source / "absolute").symlink_to("/etc/passwd")
    (source / "itself").symlink_to(".")
    (source / "dangling").symlink_to("nothing")
    (source / "loop").symlink_to("loop")
    (source / "half").symlink_to("ignored.txt")
    (source / "forgiven").symlink_to("/etc/passwd")
    with pytest.raises(InputError) as caught:
        freeze(source, into)
    lines = str(caught.value).splitlines()
    told = {line.removeprefix(f"{source}: ").split(":")[0] for line in lines}
    assert told == {"leaves", "absolute", "itself", "dangling", "loop", "half"}


def test_pipes_and_sockets_are_refused_and_not_waited_for(source: Path, into: Path) -> None:
    os.mkfifo(source / "pipe")
    (source / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "s"))
        with pytest.raises(InputError) as caught:
            freeze(source, into)
    assert "pipe: a socket, pipe or device" in str(caught.value)
    assert "/source: s: a socket" in str(caught.value)
    assert "zero: a link to a socket, pipe or device; put it into" in str(caught.value), "nobody can copy it"


@pytest.mark.parametrize("name", [b"back\\slash", b"\xff\xfe.bin"])
def test_names_that_do_not_travel_are_refused(source: Path, into: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_text("x")
    with pytest.raises(InputError, match="does not work on every platform") as caught:
        freeze(source, into)
    str(caught.value).encode()


def test_what_is_not_there_is_told(source: Path, into: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        freeze(tmp_path / "gone", into)
    with pytest.raises(InputError, match="cannot be read"):
        freeze(source, into, also={"requirements.txt": tmp_path / "gone.txt"})


def test_a_file_whose_size_never_fits_its_bytes_is_refused() -> None:
    """For example a file that grows whenever it is read. Files in /proc report size 0 and are not empty."""
    with pytest.raises(InputError, match="keeps changing"):
        bundle._read(Path("/proc", str(os.getpid()), "status"))


def test_a_file_of_the_kernel_is_refused_and_leaves_nothing(into: Path) -> None:
    with pytest.raises(InputError, match="whose files the kernel makes up"):
        freeze(None, into, also={"status": Path("/proc/self/status")})
    assert not into.exists() or list(into.iterdir()) == []


# --- What stays here by itself, and .orchestratorignore ---------------------------------------------------


def left_out(source: Path, into: Path) -> dict[str, str]:
    return {path: each.rule for each in frozen(source, into).left_out for path in each.paths}


def test_environments_and_caches_stay_here_without_a_gitignore(source: Path, into: Path) -> None:
    put(source, "train.py")
    put(source, "pkg/env/a.py")  # a package, no environment
    out = [
        ".venv/lib/x.py", "venv/lib/x.py", "env/pyvenv.cfg", "my-env/pyvenv.cfg", "conda/conda-meta/history",
        "node_modules/left-pad/index.js", "wandb/run-1/x", "pkg/__pycache__/a.pyc", ".mypy_cache/x",
        ".pytest_cache/x", ".ruff_cache/x", ".ipynb_checkpoints/x.ipynb", ".git/config",
    ]  # fmt: skip
    for name in out:
        put(source, name)
    (source / "venv" / "python").symlink_to("/usr/bin/env")
    (source / "sub").mkdir()
    (source / "sub" / ".venv").symlink_to("/opt")
    found = frozen(source, into)
    assert names(into, found.sha256) == ["pkg/env/a.py", "train.py"]
    told = left_out(source, into)
    assert told["env/"] == told["my-env/"] == "by default: a Python environment (it has pyvenv.cfg)"
    assert told["conda/"] == "by default: a conda environment (it has conda-meta)"
    assert told["sub/.venv"] == told["venv/"] == "by default: a Python environment"
    assert len(told) == len(out) + 1
    assert all(each.default for each in found.left_out)


def test_orchestratorignore_stands_above_gitignore_and_the_defaults(source: Path, into: Path) -> None:
    for name in (
        "train.py", "notes.md", "sub/notes.md", "wandb/settings", "wandb/run/x", "data/small.csv",
        "data/big.csv", "data/deep/a/x.csv", "logs/a.log", "logs/b.log", "out/weights/w.pt", ".git/config",
    ):  # fmt: skip
        put(source, name)
    put(source, ".gitignore", "data/\n*.log\nout/\n")
    put(source, ".orchestratorignore", "# mine\n*.md\n!/wandb/settings\n!data/small.csv\n!data/deep/*/x.csv\n"
        "\n!a.log\n!out/\n!.git/config\n")  # fmt: skip
    put(source, "sub/.orchestratorignore", "!notes.md\n")
    found = frozen(source, into)
    assert set(names(into, found.sha256)) == {
        ".gitignore", ".orchestratorignore", "sub/.orchestratorignore", "train.py", "sub/notes.md",
        "wandb/settings", "data/small.csv", "data/deep/a/x.csv", "logs/a.log", "out/weights/w.pt",
    }  # fmt: skip
    assert left_out(source, into) == {
        ".git/": "always: the history of git", "wandb/": "by default: what Weights & Biases writes",
        "data/": ".gitignore: data/", "logs/b.log": ".gitignore: *.log",
        "notes.md": ".orchestratorignore: *.md",
    }  # fmt: skip


def test_ignore_files_above_the_source_are_named_from_it(tmp_path: Path, into: Path) -> None:
    put(tmp_path, "repo/.git/HEAD")
    put(tmp_path, "repo/.orchestratorignore", "/jobs/mine/out/\n*.csv\n")
    put(tmp_path, "repo/jobs/mine/.gitignore", "!a.csv\n")
    for name in ("a.py", "a.csv", "out/x"):
        put(tmp_path, f"repo/jobs/mine/{name}")
    assert left_out(tmp_path / "repo" / "jobs" / "mine", into) == {
        "a.csv": "../../.orchestratorignore: *.csv", "out/": "../../.orchestratorignore: /jobs/mine/out/",
    }  # fmt: skip


def test_too_many_files_names_the_fullest_folder(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.freeze.bundle.ENTRIES_MAX", 20)
    for number in range(15):
        put(source, f"images/deep/{number}.png")
    for number in range(10):
        put(source, f"code/{number}.py")
    with pytest.raises(InputError, match=r"more than 20 files.*\.orchestratorignore.*images/ 1[0-9]"):
        freeze(source, into)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("python", "venv/train.py"), "venv/train.py, but venv/ is not sent (by default: "),
        (("./venv/bin/python", "x.py"), "write `python`"),
        (("bash", "-c", "cd x && python train.py --data=data"), "data, but data/ is not sent (.gitignore: "),
        (("python", "x.py", "--logger", "wandb"), ""),
        (("python", "train.py", "data.csv"), ""),
    ],
)  # fmt: skip
def test_a_command_that_names_what_stays_here_gets_a_hint(
    source: Path, into: Path, command: tuple[str, ...], told: str
) -> None:
    put(source, ".gitignore", "data\n")
    for name in ("venv/train.py", "venv/bin/python", "data/x", "wandb/x", "data.csv"):
        put(source, name)
    hints = list(named(command, frozen(source, into).left_out))
    assert len(hints) == bool(told)
    assert told in "".join(hints)
