"""GraphMER's other reader: facts from JSONL with a folder of code, and every error with its line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from graphmer import graph, triples
from graphmer.corpus import Corpus

LINES = [f"line {number}" for number in range(1, 151)]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "a").mkdir(parents=True)
    (folder / "a/b.java").write_text("\n".join(LINES) + "\n")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "outside.txt").write_text("secret")
    return folder


def jsonl(folder: Path, *lines: object) -> Path:
    path = folder / "facts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def fact(head: str, tail: str = "t", **qualifiers: object) -> dict[str, object]:
    return {"head": head, "relation": "likes", "tail": tail, "qualifiers": qualifiers}


def test_facts_come_with_the_lines_around_them(tmp_path: Path, code: Path) -> None:
    path = jsonl(
        tmp_path,
        fact("x", file="a/b.java", line=64),
        fact("y", path="a/../a/b.java", line=65, score=0.5),
        fact("z", file="a/b.java"),
        fact("z", file="a/b.java"),  # stated twice
        fact("w", file="a/b.java", line=150),
        "",
        {"head": "free.name", "relation": "calls", "tail": "u"},
        {"head": "free.name", "relation": "calls", "tail": "v", "qualifiers": None},
    )
    found = {p.name: p for p in triples.read(path, code).passages}
    assert {name: [t.head for t in p.triples] for name, p in found.items()} == {
        "a/b.java:1": ["x", "z"], "a/b.java:65": ["y"], "a/b.java:129": ["w"], "free.name": ["free.name"] * 2
    }  # fmt: skip
    assert found["a/b.java:65"].text == "\n".join(LINES[64:128])
    assert found["a/b.java:129"].text == "\n".join(LINES[128:])
    assert found["free.name"].text == "free.name"
    assert {p.module for p in found.values()} == {"a/b.java", "free.name"}


def test_a_cut_takes_whole_modules_in_the_order_of_their_hashes(tmp_path: Path, code: Path) -> None:
    path = jsonl(tmp_path, *(fact(f"head{i}", f"tail{j}") for j in range(3) for i in range(20)))
    whole = [p.module for p in triples.read(path, code).passages]
    assert whole == sorted(whole, key=graph.order_of)
    cut = triples.read(path, code, limit=7)
    assert [p.module for p in cut.passages] == whole[:3]
    assert len(cut.triples) == 7


def test_every_fault_is_told_with_its_line(tmp_path: Path, code: Path) -> None:
    faulty = {
        "{": "Expecting",
        "[]": "expected an object",
        '{"head": "a", "relation": "r"}': "tail: expected a name, not None",
        '{"head": " ", "relation": "r", "tail": "t"}': "head: expected a name, not ' '",
        '{"head": "a", "relation": 3, "tail": "t"}': "relation: expected a name, not 3",
        '{"head": "\\ud800", "relation": "r", "tail": "t"}': "is not valid text",
        '{"head": "a\\u0000", "relation": "r", "tail": "t"}': "is not valid text",
        '{"head": "a", "relation": "r", "tail": "t", "qualifier": {}}': "unknown qualifier; known are head",
        '{"head": "a", "relation": "r", "tail": "t", "qualifiers": []}': "qualifiers: expected an object",
        "[" * 100_000: "recursion",
        json.dumps(fact("a", file=3)): "file: expected a path, not 3",
        json.dumps(fact("a", file="a")): "file 'a' cannot be read",
        json.dumps(fact("a", file="none.py")): "file 'none.py' cannot be read: No such file",
        json.dumps(fact("a", file="../outside.txt")): "file '../outside.txt' is outside code",
        json.dumps(fact("a", file=str(tmp_path / "outside.txt"))): "is outside code",
        json.dumps(fact("a", file="latin.txt")): "file 'latin.txt' cannot be read: it is not UTF-8",
        json.dumps(fact("a", file="a/b.java", line=True)): "line: expected a number from 1, not True",
        json.dumps(fact("a", file="a/b.java", line=0)): "line: expected a number from 1, not 0",
        json.dumps(fact("a", file="a/b.java", line=151)): "line: a/b.java has 150 lines, not 151",
    }
    path = jsonl(tmp_path, fact("good"), *faulty)
    with pytest.raises(ValueError) as raised:
        triples.read(path, code)
    told = str(raised.value).split("\n")
    assert len(told) == len(faulty) == 19
    for number, (line, message) in enumerate(zip(told, faulty.values(), strict=True), start=2):
        assert line.startswith(f"{path}:{number}: ")
        assert message in line


def test_of_many_faults_the_first_twenty_are_told(tmp_path: Path, code: Path) -> None:
    with pytest.raises(ValueError) as raised:
        triples.read(jsonl(tmp_path, *["?"] * 33), code)
    told = str(raised.value).split("\n")
    assert (len(told), told[-1]) == (21, "and 13 more")


def test_a_file_without_facts_is_refused(tmp_path: Path, code: Path) -> None:
    with pytest.raises(ValueError, match="no fact"):
        triples.read(jsonl(tmp_path, "", ""), code)


def test_it_becomes_a_corpus_split_by_file(tmp_path: Path, code: Path) -> None:
    for number in range(30):
        (code / f"f{number}.py").write_text(f"def name{number}(): return other\n" * 200)
    facts = [
        fact(f"name{i}", f"name{j}", file=f"f{i}.py", line=line)
        for i in range(30)
        for j, line in enumerate((1, 70, 150))
    ]
    read = triples.read(jsonl(tmp_path, *facts, {"head": "m", "relation": "contains", "tail": "c"}), code)
    made = Corpus.build(read, vocabulary=400, passage_tokens=60, held_out=0.3)
    assert made.relations == ("contains", "likes")
    assert len(made.facts) == 91
    for module in np.unique(made.modules):
        assert len(np.unique(made.held_out[made.modules == module])) == 1
    assert 0 < made.held_out.sum() < len(made.held_out)
