"""Requirements files as pip reads them. What is none is refused by file and line, and no content is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import InputError
from orchestrator.freeze.requirement_file import check, read
from orchestrator.freeze.requirements import lock
from tests.odd_files import Shape, a_folder, a_link_to_a_device, a_link_to_itself, a_pipe, a_socket
from tests.package_index import package_index

HASH = "0" * 64


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def checked(path: Path) -> None:
    check(path, [path.parent], [path.parent])


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as found:
        checked(path)
    return str(found.value)


VALID = [
    "numpy", "numpy==1.26.*", "torch>=2,<3 ; python_version < '3.12'", "torch == 2.1.0+cu118  # a build",
    "ruamel.yaml", "x[a,b]~=1.0", "x (>=1)", "x===1", "x!=1.0,>=0.5;sys_platform=='linux'",
    f"x==1 \\\n    --hash=sha256:{HASH} \\\n    --hash=sha256:{HASH}\n    # via y",
    f"x==1 ; python_version >= '3.9' and python_version < '4' --hash=sha256:{HASH}",
    "x @ https://host/x-1-py3-none-any.whl", "x[a] @ git+https://host/x.git@v1 ; os_name == 'posix'",
    "x @ file:///croot/feedstock_root/build_artifacts/x_1/work", "https://host/x.zip#sha256=00",
    "git+ssh://git@host/x.git#egg=x", "-e git+https://host/x@main#egg=x", "-e.", "-e ./lib[dev]",
    "--editable=lib ; python_version < '4'", "./lib", "lib/", "./wheels/x-1-py3-none-any.whl", "x.tar.gz",
    "/kaggle/input/wheels/x-1-py3-none-any.whl", "./gone.whl; sys_platform == 'win32'", "-e 'my lib'",
    "-i https://host/simple", "--index-url=https://${TOKEN}@host/simple", "--extra-index https://host/simple",
    "--extra-index-url https://host/a https://host/b", "-f ./wheels", "--find-links wheels", "--no-index",
    "--pre", "--prefer-binary", "--no-binary :all:", "--only-binary=numpy", "--require-hashes",
    "--trusted-host host", "--use-feature fast-deps", "x==1 --global-option=--no-user-cfg",
    "x --config-settings 'a=b'", "x==${VERSION}", "${NAME}", "x${MORE}", "git+https://${TOKEN}@host/x.git",
    "-r ${PLACE}/more.txt", "-r https://host/more.txt", "-r more.txt", "-cmore.txt", "--constraint=more.txt",
    "# nothing", "", "\ufeffnumpy", "numpy\r\nscipy\r\n", "numpy \\", "x # y \\\nz",
]  # fmt: skip


@pytest.mark.parametrize("line", VALID)
def test_what_pip_takes_is_taken(tmp_path: Path, line: str) -> None:
    for folder in ("lib", "my lib"):
        put(tmp_path, f"{folder}/pyproject.toml", "")
    put(tmp_path, "more.txt", "scipy\n")
    checked(put(tmp_path, "requirements.txt", line))


REFUSED = [
    "user1:x:1000:1000:Private Words,,,:/opt/user1:/bin/bash", "-----BEGIN NOTE-----", "the safe is 4711",
    "the safe = 4711", "password=4711", "PASSWORD: 4711", '{"key": "4711"}', "[section]", "/bin/bash", "--",
    "--password 4711", "-x 4711", "- 4711", "-e ./4711", "-e /no/such/4711", "./4711/",
    "ssh-ed25519 AAAA me@host",
    "-r 4711", "-r .", "127.0.0.1 localhost 4711", "deb http://host/debian stable 4711", "x==1 and 4711",
    "x; 4711 is a note", "x >= 4711 or so", "https://host/a 4711", "--pre 4711", "x @ ", "'4711",
    "<html>4711",
    "machine host login me password 4711", "export A=4711", "4711!", "import secret_4711  ", "import os;os.x",
    "x = {version = '4711'}", "torch==2.1.0 (4711)",
]  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
@pytest.mark.parametrize("nested", [False, True])
def test_what_is_no_line_of_pips_is_refused_by_its_number_alone(
    tmp_path: Path, line: str, nested: bool
) -> None:
    path = put(tmp_path, "requirements.txt", f"numpy\n\n{line}\n")
    given = put(tmp_path, "whole.txt", "scipy\n--requirement requirements.txt\n") if nested else path
    told = refusal(given)
    assert f"{path}:3" in told
    for word in ("4711", "Private", "BEGIN", "/bin/bash"):
        assert word not in told, "the line is not repeated"


def test_each_such_line_is_named_up_to_a_few(tmp_path: Path) -> None:
    told = refusal(put(tmp_path, "accounts", "\n".join(f"user{n}:x:{n}" for n in range(20))))
    assert [f"accounts:{n} is neither" in told for n in (1, 5, 6)] == [True, True, False]
    assert "and 15 more" in told
    assert "user1" not in told


@pytest.mark.parametrize("shape", [a_pipe, a_socket, a_folder, a_link_to_a_device, a_link_to_itself])
def test_what_is_included_is_a_file(tmp_path: Path, shape: Shape) -> None:
    shape(tmp_path / "odd.txt")
    told = refusal(put(tmp_path, "requirements.txt", "numpy\n-r odd.txt\n"))
    assert f"requirements.txt:2: {tmp_path}/odd.txt is a " in told
    assert "not a file" in told
    assert f"{tmp_path}/odd.txt is a " in refusal(tmp_path / "odd.txt")


@pytest.mark.parametrize("origin", ["/proc/self/environ", "/proc/version", "/dev/fd/{}", "/proc/self/root{}"])
def test_the_kernels_files_are_none(tmp_path: Path, origin: str) -> None:
    """Also what they lead to, and behind a link."""
    path = put(tmp_path, "real.txt", "numpy\n")
    here = os.open(path, os.O_RDONLY)
    try:
        (tmp_path / "link.txt").symlink_to(origin.format(here if "fd" in origin else path))
        told = refusal(put(tmp_path, "requirements.txt", "-c link.txt\n"))
    finally:
        os.close(here)
    assert f"requirements.txt:1: {tmp_path}/link.txt leads into /proc (proc)" in told
    assert "leads into /proc (proc)" in refusal(tmp_path / "link.txt")


@pytest.mark.parametrize(("name", "is_one"), [("hostname", False), ("token", False), ("requirements", True),
                                              ("base.txt", True), ("constraints-dev", True)])  # fmt: skip
def test_a_word_outside_the_job_is_a_package_only_in_a_file_that_is_named_so(
    tmp_path: Path, name: str, is_one: bool
) -> None:
    """One bare word is a valid line, so /etc/hostname would be looked for on the index."""
    job = tmp_path / "job"
    outside = put(tmp_path, f"etc/{name}", "box\n")
    including = put(job, "requirements.txt", f"-r ../etc/{name}\n")
    (job / "link.txt").symlink_to(outside)
    for path in (outside, including, job / "link.txt"):
        if is_one:
            check(path, [job], [job])
            continue
        with pytest.raises(InputError, match="outside the job's folder and is not named as") as found:
            check(path, [job], [job])
        assert "box" not in str(found.value)
    check(outside, [job, tmp_path / "etc"], [job])


# --- Encodings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_what_pip_reads_by_its_mark_is_read_and_locked(tmp_path: Path, encoding: str) -> None:
    """PowerShell's `pip freeze > requirements.txt` writes UTF-16."""
    mark = "\ufeff" if encoding.endswith("e") and encoding != "utf-8-sig" else ""
    path = put(tmp_path, "requirements.txt", f"{mark}greeting\r\n".encode(encoding))
    checked(path)
    assert [each.text for each in read(path).lines] == ["greeting"]
    with package_index(tmp_path / "index") as index:
        assert "greeting==1.0 \\\n    --hash=sha256:" in (lock(path, index.variables) or "")


def test_a_line_that_names_the_encoding_counts_as_with_pip(tmp_path: Path) -> None:
    path = put(
        tmp_path, "requirements.txt", "# -*- coding: latin-1 -*-\nnumpy  # für uns\n".encode("latin-1")
    )
    assert [each.text for each in read(path).lines] == ["numpy"]
    late = put(tmp_path, "late.txt", "numpy\n\n# -*- coding: latin-1 -*- ü\n".encode("latin-1"))
    assert "late.txt is not text in UTF-8: save the file as UTF-8" in refusal(late)


@pytest.mark.parametrize(
    "data",
    ["numpy\n".encode("utf-16-le"), "für\n".encode("latin-1"), b"# coding: klingon\nnumpy\n",
     b"\xff\xfen", b"numpy\n\0\0\0\0"],
)  # fmt: skip
def test_what_pip_cannot_read_is_refused_with_what_to_do(tmp_path: Path, data: bytes) -> None:
    path = put(tmp_path, "requirements.txt", data)
    told = refusal(path)
    assert told.startswith(str(path))
    assert "save the file as UTF-8" in told
    assert "klingon" not in told.lower(), "a word of the file is not repeated"


def test_lines_are_joined_and_numbered_as_pip_does(tmp_path: Path) -> None:
    path = put(tmp_path, "requirements.txt", "# first\na \\\n  ==1\n\nb # c \\\nd\n-c more.txt\n")
    put(tmp_path, "more.txt", "e<2\n-r last.txt\n")
    put(tmp_path, "last.txt", "f\n")
    found = [(str(each), each.text, each.constraint) for each in read(path).lines]
    assert found == [
        ("requirements.txt:2", "a   ==1", False), ("requirements.txt:5", "b", False),
        ("more.txt:1", "e<2", True), ("last.txt:1", "f", True),
    ]  # fmt: skip
