"""Folders that `pull` wrote are no source of the next submit."""

from __future__ import annotations

from pathlib import Path

from orchestrator import Client
from orchestrator.client import pulled
from orchestrator.freeze import bundle, leaving
from orchestrator.home import PULLED, Folders
from tests.specs import GOOD


def sent(source: Path, home: Path) -> tuple[set[str], list[str]]:
    """The names that leave, and the rules that left something out."""
    into = home / "bundles"
    made = bundle.frozen(source, into, pulled=pulled.known(Folders(home)))
    archive = into / f"{made.sha256}.tar.gz"
    return set(leaving.names_in(archive)), [f"{each.rule}: {each.paths[0]}" for each in made.left_out]


def pull(home: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "model.pt").write_text("weights")
    pulled.remember(Folders(home), folder)


def test_a_pulled_folder_stays_here_unless_it_is_brought_back(tmp_path: Path) -> None:
    home, source = tmp_path / "home", tmp_path / "source"
    home.mkdir()
    source.mkdir()
    (source / "train.py").write_text("")
    (tmp_path / "link").symlink_to(source)
    pull(home, tmp_path / "link" / "out" / "result")
    assert sent(source, home) == ({"train.py"}, ["by default: what `orchestrator pull` wrote: out/result/"])
    assert [path.name for path in (source / "out" / "result").iterdir()] == ["model.pt"], "and is what it was"
    (source / ".orchestratorignore").write_text("!out/result/\n")
    assert "out/result/model.pt" in sent(source, home)[0]


def test_a_plan_names_it_among_what_stays_here(tmp_path: Path) -> None:
    home, code = tmp_path / "home", tmp_path / "code"
    home.mkdir()
    code.mkdir()
    (home / "config.yaml").write_text("platforms:\n  here: {type: process, accelerator: cpu}\n")
    (code / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(GOOD)
    pull(home, code / "result")
    found = Client(home).plan(tmp_path / "job.yaml").contents
    assert [name for name, _ in found.files] == ["train.py"]
    assert [each.paths for each in found.left_out] == [("result/",)]


def test_another_folder_of_its_name_is_source(tmp_path: Path) -> None:
    home, source = tmp_path / "home", tmp_path / "source"
    home.mkdir()
    pull(home, source / "result")
    (source / "result").rename(tmp_path / "elsewhere")
    (source / "result").mkdir()
    (source / "result" / "code.py").write_text("")
    assert sent(source, home) == ({"result/code.py"}, [])


def test_a_new_folder_with_the_inode_of_a_removed_one_is_source(tmp_path: Path) -> None:
    home, source = tmp_path / "home", tmp_path / "source"
    home.mkdir()
    pull(home, source / "result")
    (source / "result" / "code.py").write_text("")
    assert sent(source, home) == (set(), ["by default: what `orchestrator pull` wrote: result/"])
    (source / "result" / "model.pt").unlink()  # as if removed and made again: most file systems reuse inodes
    assert sent(source, home) == ({"result/code.py"}, [])


def test_a_damaged_note_says_nothing_and_is_replaced(tmp_path: Path) -> None:
    for content in ("{", "[1]", '{"/x": "1", "\\u0000": 1}', '{"/": [1, [1]], "\\u0000": [1, ["a"]]}'):
        (tmp_path / PULLED).write_text(content)
        assert pulled.known(Folders(tmp_path)) == {}
    pull(tmp_path / "home", tmp_path / "source" / "result")
    assert not (tmp_path / "home").exists(), "a home that is not there is no reason to fail"
