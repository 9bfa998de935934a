"""What an image's build is given: the folders in order, the same bytes for the same files, no secrets."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from docker.utils.build import exclude_paths

from orchestrator.errors import InputError
from orchestrator.freeze import bundle
from orchestrator.freeze.images import freeze
from scripts.lock import pinned

ROOT = Path(__file__).resolve().parent.parent
SIMPLE = "ARG PYTHON_IMAGE=python:3.11\nFROM ${PYTHON_IMAGE}\n"
ON_BASE = "ARG BASE=../base\nFROM ${BASE}\n"


def put(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def unpacked(into: Path, sha256: str) -> dict[str, str]:
    with tarfile.open(into / f"{sha256}.tar.gz") as archive:
        found = ((member.name, archive.extractfile(member)) for member in archive)
        return {name: stream.read().decode() for name, stream in found if stream is not None}


def chain(into: Path, sha256: str) -> list[dict[str, Any]]:
    images: list[dict[str, Any]] = json.loads(unpacked(into, sha256)["chain.json"])["images"]
    return images


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "frozen"


def refused(folder: Path, into: Path, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        freeze(folder, into, **options)
    assert not into.exists()
    return str(error.value)


# --- The chain ------------------------------------------------------------------------------------------


def test_a_chain_is_frozen_in_the_order_of_building(tmp_path: Path, into: Path) -> None:
    put(tmp_path, {
        "os/Dockerfile": SIMPLE + "ARG VARIANT=cpu\nCOPY a.txt /\n", "os/a.txt": "a",
        "Base Image_2/Dockerfile": "ARG BASE=../os/\nFROM $BASE\nARG SIZE=3 COLOUR\n",
        "top/Dockerfile": 'ARG BASE="../Base Image_2"\nFROM --platform=linux/amd64 ${BASE}\n',
    })  # fmt: skip
    sha256 = freeze(tmp_path / "top", into)
    assert chain(into, sha256) == [
        {"name": "os", "arguments": {"PYTHON_IMAGE": "python:3.11", "VARIANT": "cpu"},
         "from": ["${PYTHON_IMAGE}"]},
        {"name": "base-image-2", "arguments": {"BASE": None, "COLOUR": None, "SIZE": "3"}, "from": []},
        {"name": "top", "arguments": {"BASE": None}, "from": []},
    ]  # fmt: skip
    assert set(unpacked(into, sha256)) == {"0/Dockerfile", "0/a.txt", "1/Dockerfile", "2/Dockerfile",
                                           "chain.json"}  # fmt: skip


def test_a_base_that_is_no_folder_is_the_name_of_an_image(tmp_path: Path, into: Path) -> None:
    put(tmp_path, {"one/Dockerfile": "ARG BASE=images/base:3\nFROM ${BASE}\n", "images/base:3/x": ""})
    (one,) = chain(into, freeze(tmp_path / "one", into))
    assert one == {"name": "one", "arguments": {"BASE": "images/base:3"}, "from": ["${BASE}"]}


def test_stages_scratch_continued_lines_and_comments_are_read_as_an_engine_reads_them(
    tmp_path: Path, into: Path
) -> None:
    text = """# escape=`
# ARG HIDDEN=1
from busybox:1 As Build
run echo ARG `
    # a comment between
    ARG NOT=one
FROM build
FROM scratch AS end
COPY --from=build /a /requirements.txt
"""
    put(tmp_path, {"one/Dockerfile": text})
    (one,) = chain(into, freeze(tmp_path / "one", into))
    assert (one["arguments"], one["from"]) == ({}, ["busybox:1"])


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"a/x": ""}, "{a}: no Dockerfile there; `image` must be a folder with a Dockerfile, or a name"),
        ({"a/Dockerfile": "RUN true\n"}, "{a}/Dockerfile:1: FROM is missing"),
        ({"a/Dockerfile": "# x\nFROM\n"}, "{a}/Dockerfile:2: FROM names no image"),
        (
            {"a/Dockerfile": "ARG B\n\nFROM ${A:-x}$B\nARG A\n"},
            "{a}/Dockerfile:3: FROM uses A, which no ARG before it declares",
        ),
        ({"a/Dockerfile": "ARG BASE=../b\nFROM ${BASE}\n"}, "{a}/Dockerfile:1: ARG BASE leads to {b}, which"),
        (
            {"a/Dockerfile": "ARG BASE=../b\nFROM x\n", "b/Dockerfile": "FROM x\n"},
            "{a}/Dockerfile:1: ARG BASE names a folder, but no FROM uses it",
        ),
        ({"a/Dockerfile": "ARG BASE=.\nFROM ${BASE}\n"}, "builds images in a circle: a → a"),
        (
            {"a/Dockerfile": ON_BASE, "base/Dockerfile": "\nARG BASE=../a\nFROM ${BASE}\n"},
            "{base}/Dockerfile:2: ARG BASE builds images in a circle: a → base → a",
        ),
        ({"a/Dockerfile": "ARG A='x\nFROM x\n"}, "{a}/Dockerfile:1: ARG A='x: No closing quotation"),
        ({"a/Dockerfile": b"\xff\xfe"}, "{a}/Dockerfile: cannot be read"),
        (
            {"a/Dockerfile": "FROM x\nCOPY requirements.txt /\n"},
            "{a}/Dockerfile:2: copies requirements.txt, which is not in this folder; put it there, or set",
        ),
    ],
)
def test_what_cannot_be_built_is_told_with_its_line(
    tmp_path: Path, into: Path, files: dict[str, str | bytes], told: str
) -> None:
    put(tmp_path, files)
    places = {name: str(tmp_path / name) for name in ("a", "b", "base")}
    assert told.format(**places) in refused(tmp_path / "a", into)


# --- The requirements of the job ------------------------------------------------------------------------


@pytest.mark.parametrize("copy", ["COPY requirements.txt x /tmp/", 'ADD ["./requirements.txt", "/"]'])
def test_an_image_that_copies_requirements_gets_the_jobs(tmp_path: Path, into: Path, copy: str) -> None:
    put(tmp_path, {"a/Dockerfile": f"FROM x\n{copy}\n", "a/.dockerignore": "*\n", "job/r.txt": "numpy\n"})
    sha256 = freeze(tmp_path / "a", into, requirements=tmp_path / "job" / "r.txt")
    assert unpacked(into, sha256)["0/requirements.txt"] == "numpy\n"
    assert "no such file" in refused(tmp_path / "a", tmp_path / "other", requirements=tmp_path / "none")


def test_requirements_of_its_own_come_first_and_who_copies_none_gets_none(tmp_path: Path, into: Path) -> None:
    put(tmp_path, {
        "base/Dockerfile": "FROM x\nCOPY --from=x requirements.txt /\n", "job.txt": "numpy\n",
        "a/Dockerfile": ON_BASE + "COPY requirements.txt /\n", "a/requirements.txt": "torch\n",
    })  # fmt: skip
    found = unpacked(into, freeze(tmp_path / "a", into, requirements=tmp_path / "job.txt"))
    assert found["1/requirements.txt"] == "torch\n"
    assert "0/requirements.txt" not in found


# --- Content-addressed ----------------------------------------------------------------------------------


def test_the_same_files_are_the_same_bytes_whatever_their_times_order_and_place(
    tmp_path: Path, into: Path
) -> None:
    files: dict[str, str | bytes] = {
        "base/Dockerfile": SIMPLE, "a/Dockerfile": ON_BASE, "a/x/b.py": "b", "a/x/a.py": "a"
    }  # fmt: skip
    one, two = put(tmp_path / "one", files), put(tmp_path / "two", dict(reversed(files.items())))
    os.utime(two / "a" / "x" / "a.py", (1, 1))
    put(two, {"a/__pycache__/x.pyc": "1", "a/.git/HEAD": "x"})
    (two / "a" / "x" / "b.py").chmod(0o600)
    sha256 = freeze(one / "a", into)
    assert freeze(two / "a", tmp_path / "elsewhere") == sha256
    assert [path.name for path in into.iterdir()] == [f"{sha256}.tar.gz"]
    (two / "a" / "x" / "b.py").chmod(0o700)
    executable = freeze(two / "a", into)
    put(two, {"base/Dockerfile": SIMPLE + "RUN true\n"})
    assert len({sha256, executable, freeze(two / "a", into)}) == 3


# --- .dockerignore --------------------------------------------------------------------------------------

TREE = ("a.md", "a.txt", "docs/a.md", "docs/deep/b.md", "docs/deep/keep.md", "src/x.py", "src/x.pyo",
        ".env.d/x", "temp1/x", "tempa/x", "data/1/big.bin", "data/2/small.bin", "a+(b).txt")  # fmt: skip


@pytest.mark.parametrize(
    "patterns",
    [
        ["*.md"], ["/a.md"], ["**/*.md"], ["docs"], ["docs/"], ["docs/*"], ["docs/**"], ["*/a.md"], ["*"],
        ["*", "!src"], ["docs", "!docs/deep/keep.md"], ["docs/deep/*", "!docs/deep/keep.md"],
        ["!docs/deep/keep.md", "docs"], ["temp?"], ["temp[0-9]"], ["a+(b).txt"], ["data/*/big.bin"],
        ["# docs", "", "  src/x.py  "], ["./docs", "src/../a.txt"], ["**/deep"], ["docs/**/keep.md"],
        ["**", "!src/x.py"], ["data/**", "!data/2"], [".env.d"], ["a.*", "!a.md"], ["**/x*", "!src/**"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_dockerignore_leaves_out_what_docker_leaves_out(
    tmp_path: Path, into: Path, patterns: list[str]
) -> None:
    folder = put(tmp_path / "a", dict.fromkeys(TREE, "x"))
    put(folder, {"Dockerfile": "FROM x\n", ".dockerignore": "\n".join(patterns) + "\n"})
    # The SDK's implementation. It differs from docker's in one way: in [^…] it takes the ^ as a character.
    given = [line.strip() for line in patterns if line.strip() and not line.startswith("#")]
    expected = {name for name in exclude_paths(str(folder), given) if (folder / name).is_file()}
    found = {name.removeprefix("0/") for name in unpacked(into, freeze(folder, into))} - {"chain.json"}
    assert found == expected | {"Dockerfile", ".dockerignore"}


def test_dockerignore_knows_what_a_character_must_not_be(tmp_path: Path, into: Path) -> None:
    folder = put(tmp_path / "a", dict.fromkeys(TREE, "x"))
    put(folder, {"Dockerfile": "FROM x\n", ".dockerignore": "temp[^0-9]\n"})
    found = unpacked(into, freeze(folder, into))
    assert "0/temp1/x" in found
    assert "0/tempa/x" not in found


# --- Bounds ---------------------------------------------------------------------------------------------

DOUBLING = "ARG A0=aaaaaaaa\n" + "".join(f"ARG A{n}=$A{n - 1}${{A{n - 1}}}\n" for n in range(1, 31))


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (
            f"{DOUBLING}FROM $A30\n",
            15,
            "ARG A14 is longer than 65,536 characters with its arguments filled in",
        ),
        (f"{DOUBLING.replace('ARG', 'ENV')}", 15, "ENV A14 is longer"),
        (f"{DOUBLING[: DOUBLING.index('ARG A12')]}FROM x:$A11\n", 13, "FROM is longer than 4,096 characters"),
        ("FROM x\n" + "ENV A ${A:-b}$A$A\n" * 40, 2 + 11, "ENV A is longer"),
        ("FROM x\n" + "ARG A\n" * 501, 502, "more than 500 arguments and variables"),
        ("FROM x\nARG A=" + "${A:-" * 20_000, 2, "ARG: longer than 65,536 characters"),
    ],
)
def test_arguments_that_grow_without_end_are_refused_with_their_line(
    tmp_path: Path, into: Path, text: str, line: int, told: str
) -> None:
    """Thirty such lines took the controller a quarter of an hour and 3.1 GB."""
    put(tmp_path, {"a/Dockerfile": text if text.startswith("FROM") else f"{text}FROM x\n"})
    assert f"{tmp_path}/a/Dockerfile:{line}: {told}" in refused(tmp_path / "a", into)


def test_arguments_that_name_each_other_as_people_write_them_are_fine(tmp_path: Path, into: Path) -> None:
    text = 'ARG A=1\nARG B=${A}-${C:-x}\nFROM x:$B\nENV PATH=/opt/bin:$PATH LONG="a b"\nENV OLD one two\n'
    put(tmp_path, {"a/Dockerfile": text})
    (one,) = chain(into, freeze(tmp_path / "a", into))
    assert one["arguments"] == {"A": "1", "B": "${A}-${C:-x}"}


def test_a_file_that_is_no_dockerfile_is_not_read_to_its_end(tmp_path: Path, into: Path) -> None:
    put(tmp_path, {"a/Dockerfile": "#" * 300_000})
    assert "larger than 256 KiB" in refused(tmp_path / "a", into)


def test_a_pattern_that_would_take_hours_is_refused(tmp_path: Path, into: Path) -> None:
    put(tmp_path, {"a/Dockerfile": "FROM x\n", "a/.dockerignore": f"x\n{'*a' * 30}b\n", f"a/{'a' * 200}": ""})
    assert "a/.dockerignore:2: too many wildcards" in refused(tmp_path / "a", into)


# --- What may not go along ------------------------------------------------------------------------------


def test_what_looks_like_a_credential_is_refused_unless_listed(tmp_path: Path, into: Path) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nx"
    put(tmp_path, {"base/Dockerfile": "FROM x\n", "base/company.pem": "x", "a/Dockerfile": ON_BASE,
                   "a/notes.txt": key, "a/sub/.env": "x"})  # fmt: skip
    told = refused(tmp_path / "a", into)
    assert all(str(tmp_path / name) in told for name in ("base/company.pem", "a/notes.txt", "a/sub/.env"))
    assert ".dockerignore" in told
    assert "a/notes.txt:1 (a private key)" in told
    put(tmp_path, {"a/.dockerignore": "sub\n"})
    assert freeze(tmp_path / "a", into, allow=["company.pem", "notes.txt"])


def test_a_login_in_a_dockerfile_is_refused_with_its_line(tmp_path: Path, into: Path) -> None:
    install = "RUN pip install --extra-index-url https://me:s3same@example.org/simple x\n"
    put(tmp_path, {"a/Dockerfile": f"FROM x\n{install}"})
    told = refused(tmp_path / "a", into)
    assert "a/Dockerfile:2: a login in an address; anyone with the image could read it" in told
    assert "s3same" not in told


def test_too_much_is_refused_with_the_largest(
    tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "BYTES_MAX", 1_000_000)
    put(tmp_path, {"a/Dockerfile": "FROM x\n", "a/data/big.bin": b"x" * 1_500_000, "a/small": "x"})
    told = refused(tmp_path / "a", into)
    assert "1.5 MB go into the image's build, but the limit is 1 MB" in told
    assert f"{tmp_path}/a/data/big.bin 1.5 MB" in told


def test_a_link_goes_along_as_its_file_and_may_not_leave_the_folder(tmp_path: Path, into: Path) -> None:
    folder = put(tmp_path / "a", {"Dockerfile": "FROM x\n", "x/real.txt": "real"})
    (folder / "link.txt").symlink_to("x/real.txt")
    assert unpacked(into, freeze(folder, into))["0/link.txt"] == "real"
    shutil.rmtree(into)
    (folder / "bad").symlink_to(tmp_path)
    assert f"{folder}/bad: a link out of the folder" in refused(folder, into)
    (folder / "bad").unlink()
    (folder / "bad").symlink_to("x")
    assert f"{folder}/bad: a link to a folder cannot be included" in refused(folder, into)
    (folder / "bad").unlink()
    os.mkfifo(folder / "bad")
    assert f"{folder}/bad: a socket, pipe or device" in refused(folder, into)
    (folder / "bad").unlink()
    (folder / "bad").symlink_to("/dev/zero")
    assert f"{folder}/bad: a socket, pipe or device cannot be included" in refused(folder, into)


# --- The images of this repository ----------------------------------------------------------------------


def test_the_repositorys_images_freeze_with_the_jobs_requirements(into: Path) -> None:
    requirements = ROOT / "jobs" / "graphmer" / "requirements.txt"
    found = unpacked(into, freeze(ROOT / "images" / "graphmer", into, requirements=requirements))
    assert found["1/requirements.txt"] == requirements.read_text()
    assert set(found) == {
        "0/Dockerfile", "0/.dockerignore", "0/torch-cpu.txt", "0/torch-cuda.txt", "0/torch-tpu.txt",
        "1/Dockerfile", "1/.dockerignore", "1/requirements.lock", "1/requirements.txt", "chain.json",
    }  # fmt: skip


def test_images_pin_every_package_to_the_versions_that_the_tests_pass_with() -> None:
    locks = ("scripts/runtime.lock", "scripts/development.lock", "images/base/torch-cpu.txt")
    tested = pinned(ROOT / path for path in locks)
    for path in ("base/torch-cuda.txt", "graphmer/requirements.lock"):
        of_image = pinned([ROOT / "images" / path])
        assert {
            name: version for name, version in of_image.items() if tested.get(name, version) != version
        } == {}
    assert {"torch": "2.9.0", "torch-xla": "2.9.0"}.items() <= pinned(
        [ROOT / "images/base/torch-tpu.txt"]
    ).items()
