"""What is uploaded with a job: the list as frozen, without files that look like credentials."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from orchestrator.core import credentials
from orchestrator.core.job import Input
from orchestrator.errors import InputError
from orchestrator.freeze import bundle, leaving
from orchestrator.freeze.leaving import Part

KEY = f"AKIA{'Q7ZD' * 4}\n"


def put(root: Path, name: str, content: str | bytes = "x") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def given(path: Path, *allow: str) -> tuple[Part, ...]:
    return leaving.check_inputs([Input("corpus", str(path))], [allow])


def refused(path: Path, *allow: str) -> str:
    with pytest.raises(InputError) as caught:
        given(path, *allow)
    return str(caught.value)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    put(tmp_path, "data/a.txt", "aa")
    put(tmp_path, "data/deep/b.bin", b"\0" * 5000)
    return tmp_path / "data"


# --- Inputs ----------------------------------------------------------------------------------------------


def test_an_input_is_listed_with_its_files_and_sizes(data: Path) -> None:
    assert given(data) == (Part("input", "corpus", 2, 5002, (("deep/b.bin", 5000), ("a.txt", 2))),)
    assert given(data / "a.txt") == (Part("input", "corpus", 1, 2, (("a.txt", 2),)),)
    assert leaving.check_inputs([Input("far", "kaggle:owner/data")], [()]) == ()


@pytest.mark.parametrize(
    "name",
    [".env", "deep/credentials.json", "kaggle.json", "server.pem", "id_rsa", ".netrc", ".npmrc", ".pypirc",
     "service-account-1.json", ".ssh/known_hosts", ".aws/config", ".docker/config.json",
     ".cache/huggingface/token"],
)  # fmt: skip
def test_a_file_with_a_credentials_name_is_refused_unless_listed(data: Path, name: str) -> None:
    put(data, name)
    told = refused(data)
    assert f"input 'corpus': looks like credentials: {name} in {data}" in told
    assert f"`allow: [{name}]`" in told
    assert given(data, name)
    assert given(data, f"{name[:2]}*")


def test_what_looks_like_a_credential_inside_is_refused_with_its_line(data: Path) -> None:
    put(data, "notes/x.csv", f"a,b\n1,{KEY}")
    told = refused(data)
    assert "notes/x.csv:2 (an AWS access key)" in told
    assert KEY.strip() not in told
    assert given(data, "notes/x.csv")
    assert given(data, ".")
    assert "x.csv:2" in refused(data / "notes" / "x.csv")


def test_a_whole_folder_of_credentials_is_refused_by_its_place(tmp_path: Path) -> None:
    put(tmp_path, ".ssh/config", "Host x")
    (tmp_path / "innocent").symlink_to(tmp_path / ".ssh")
    assert "looks like credentials: config" in refused(tmp_path / ".ssh")
    assert "looks like credentials: config" in refused(tmp_path / "innocent")


def test_links_that_lead_out_of_an_input_are_refused_unless_listed(data: Path, tmp_path: Path) -> None:
    put(tmp_path, "elsewhere/secret.txt", "s")
    (data / "train").symlink_to(tmp_path / "elsewhere")
    (data / "near").symlink_to("a.txt")
    told = refused(data)
    assert f"links that lead out of it: train → {tmp_path / 'elsewhere'}" in told
    assert "`allow: [train]`" in told
    (part,) = given(data, "train")
    assert part.files == 4
    put(tmp_path, "elsewhere/.env")
    assert "looks like credentials: train/.env" in refused(data, "train")
    assert given(data, "train", "train/.env")
    assert given(data, "train*")


def test_links_in_a_circle_pipes_and_dead_links_are_told_and_not_waited_for(data: Path) -> None:
    (data / "deep" / "round").symlink_to("..")
    (data / "again").symlink_to(".")
    (data / "dead").symlink_to("nothing")
    os.mkfifo(data / "pipe")
    told = refused(data)
    for name, why in {
        "dead": "a broken link",
        "pipe": "a socket, pipe or device; leave it out",
        "again": "a link to a folder above it",
    }.items():
        assert f"{data}/{name}: " in told
        assert why in told


def test_only_the_beginning_of_large_data_is_searched(data: Path) -> None:
    put(data, "large.csv", b"1,2\n" * (credentials.CONTENT_BYTES_MAX // 4) + KEY.encode())
    assert given(data)


# --- Requirements ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "--extra-index-url https://me:s3same@example.org/simple",
        "--index-url=https://s3same@example.org/simple",
        "x @ git+https://s3same@github.com/me/x.git@v1",
        "x @ git+https://me:s3same@github.com/me/x.git",
        f"x @ https://example.org/x.whl?token=ghp_{'s3same' * 6}",
    ],
)
def test_a_login_in_requirements_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    put(tmp_path, "more/b.txt", f"numpy\n{line}\n")
    path = put(tmp_path, "requirements.txt", "torch\n-r more/b.txt\n--requirement=requirements.txt\n")
    with pytest.raises(InputError) as caught:
        leaving.check_requirements(path)
    assert f"{tmp_path}/more/b.txt:2: " in str(caught.value)
    assert "s3same" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    ["--extra-index-url https://${USER}:${TOKEN}@example.org/simple", "x @ git+ssh://git@github.com/me/x.git",
     "x @ git+https://github.com/me/x.git@v1", "# me@example.org, see https://example.org/a@b"],
)  # fmt: skip
def test_what_names_a_secret_only_is_fine(tmp_path: Path, line: str) -> None:
    leaving.check_requirements(put(tmp_path, "requirements.txt", f"{line}\n"))


# --- Archives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["requirements.txt", ".orchestrator/requirements.txt"])
def test_a_bundle_is_listed_as_it_was_frozen(tmp_path: Path, inside: str) -> None:
    put(tmp_path, "source/a.py", "print()")
    put(tmp_path, "source/data/big.bin", b"1" * 900)
    path = put(tmp_path, "source/requirements.txt", "numpy\n")
    also: dict[str, Path] = {inside: path}
    sha256 = bundle.freeze(tmp_path / "source", tmp_path, also=also)
    parts = {part.kind: part for part in leaving.bundled(tmp_path / f"{sha256}.tar.gz", "here", [inside])}
    assert parts["source"].largest[0] == ("data/big.bin", 900)
    assert parts["source"].name == "here"
    assert (parts["requirements"].name, parts["requirements"].size) == ("requirements.txt", 6)
    assert sum(part.files for part in parts.values()) == (3 if inside == "requirements.txt" else 4)


# --- Names and values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("WANDB_API_KEY", "x", True), ("CONDA_TOKEN", "x", True), ("A", f"hf_{'a' * 30}", True),
        ("PIP_INDEX_URL", "https://me:pw@example.org/simple", True), ("A", "-----BEGIN PRIVATE KEY", True),
        ("PIP_INDEX_URL", "https://example.org/simple", False), ("TOKENIZERS_PARALLELISM", "true", False),
        ("MODEL", "user/some-model_with-a-long_name", False), ("DOCKER_HOST", "ssh://me@host", False),
    ],
)  # fmt: skip
def test_variables_that_look_like_credentials(name: str, value: str, expected: bool) -> None:
    assert credentials.in_variable(name, value) is expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--wandb-api-key=0123456789abcdef"], True), (["--url", "https://me:pw@example.org"], True),
        (["sh", "-c", f"login ghp_{'a1' * 20} && train"], True), ([f"AKIA{'Q7ZD' * 4}"], True),
        (["--tokenizer=bert-base-uncased2"], False), (["--password={seed}"], False),
        (["--api-key=none"], False), (["--credentials=/run/x1/key.json"], False),
        (["hf_internal-testing_model-1"], False),
    ],
)  # fmt: skip
def test_words_of_a_command_that_look_like_credentials(words: Collection[str], expected: bool) -> None:
    assert any(credentials.in_word(word) for word in words) is expected
