"""Where kaggle keeps its keys, and what is not a valid key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.errors import InputError
from orchestrator.platforms.kaggle.credentials import Credentials, exposed, find

ADA = Credentials("ada", key="k1")


def keep(home: Path, name: str, text: str, mode: int = 0o600) -> Path:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def key_file(username: str = "ada", key: str = "k1") -> str:
    return json.dumps({"username": username, "key": key})


def test_nowhere(tmp_path: Path) -> None:
    assert find({}, tmp_path) is None
    assert find({"KAGGLE_USERNAME": "ada", "KAGGLE_API_TOKEN": " "}, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_token_wins_over_a_key(tmp_path: Path) -> None:
    keep(tmp_path, ".kaggle/kaggle.json", key_file())
    assert find({}, tmp_path) == ADA
    keep(tmp_path, ".kaggle/access_token.txt", "t-txt\n")
    assert find({}, tmp_path) == Credentials("", token="t-txt")
    keep(tmp_path, ".kaggle/access_token", "t-file\n")
    assert find({}, tmp_path) == Credentials("", token="t-file")
    assert find({"KAGGLE_API_TOKEN": "t-env", "KAGGLE_USERNAME": "ada"}, tmp_path) == Credentials(
        "ada", token="t-env"
    )


def test_a_token_may_be_named_by_its_file(tmp_path: Path) -> None:
    path = keep(tmp_path, "elsewhere", "t-path\n")
    assert find({"KAGGLE_API_TOKEN": str(path)}, tmp_path) == Credentials("", token="t-path")
    assert find({"KAGGLE_API_TOKEN": "t" * 5000}, tmp_path) == Credentials("", token="t" * 5000)


def test_variables_lie_over_the_file(tmp_path: Path) -> None:
    assert find({"KAGGLE_USERNAME": "ada", "KAGGLE_KEY": "k1"}, tmp_path) == ADA
    keep(tmp_path, ".kaggle/kaggle.json", key_file("eve", "k0"))
    assert find({"KAGGLE_USERNAME": "ada", "KAGGLE_KEY": "k1"}, tmp_path) == ADA
    assert find({"KAGGLE_KEY": "k1"}, tmp_path) == Credentials("eve", key="k1")


@pytest.mark.parametrize(
    ("name", "environ"),
    [
        (".config/kaggle/kaggle.json", {}),
        ("xdg/kaggle/kaggle.json", {"XDG_CONFIG_HOME": "{home}/xdg"}),
        ("moved/kaggle.json", {"KAGGLE_CONFIG_DIR": "{home}/moved"}),
    ],
)
def test_other_places_of_the_key_file(tmp_path: Path, name: str, environ: dict[str, str]) -> None:
    keep(tmp_path, name, key_file())
    assert find({key: value.format(home=tmp_path) for key, value in environ.items()}, tmp_path) == ADA


@pytest.mark.parametrize("text", ["k1 secret", "[1]", '"k1"'])
def test_a_file_that_is_no_key_file_is_named_and_not_repeated(tmp_path: Path, text: str) -> None:
    path = keep(tmp_path, ".kaggle/kaggle.json", text)
    with pytest.raises(InputError) as caught:
        find({}, tmp_path)
    assert str(path) in str(caught.value)
    assert "k1" not in str(caught.value)


def test_a_file_that_others_can_read_is_told(tmp_path: Path) -> None:
    assert exposed({}, tmp_path) == ()
    keep(tmp_path, ".kaggle/access_token", "t", 0o600)
    path = keep(tmp_path, ".kaggle/kaggle.json", key_file(), 0o644)
    assert exposed({}, tmp_path) == (path,)


@pytest.mark.parametrize(
    ("username", "key", "token"),
    [
        ("", "k1", ""),
        ("ada", "", ""),
        ("ada", "k1-secret\n", ""),
        ("ada", "", "Bearer k1-secret"),
        ("äda", "k1", ""),
    ],
)
def test_what_is_no_credentials_is_refused_and_not_repeated(username: str, key: str, token: str) -> None:
    with pytest.raises(InputError) as caught:
        Credentials(username, key, token)
    assert "k1" not in str(caught.value)


def test_credentials_do_not_show_themselves() -> None:
    assert repr(Credentials("ada", "k1", "t1")) == "Credentials(username='ada')"
