"""GraphMER's corpus: what is read and how it is cut. Held-out modules give nothing to training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from graphmer import corpus, graph, ontology, tokens
from graphmer.corpus import ANCHOR, HEAD, PASSAGE, RELATION, SPAN, TAIL, Corpus
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs import source
from tests.training.scripts import ROOT

JOB = ROOT / "jobs/graphmer"
SIZES = {"vocabulary": 1500, "passage_tokens": 120}
SAMPLE = "class Box(dict):\n    def size(self, unit='cm'):\n        return unit.width + size\n"


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source.copy(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def whole(code: Path) -> graph.Graph:
    return graph.build(code)


@pytest.fixture(scope="module")
def made(whole: graph.Graph) -> Corpus:
    return Corpus.build(whole, held_out=0.25, **SIZES)


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_sources_are_folders_packages_and_the_standard_library(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom graphmer import graph\n"
        "print(*graph.sources(['numpy', 'standard_library', sys.argv[1]]))\n"
        "assert 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=JOB, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        str(Path(np.__file__).parent), str(graph.standard_library()), str(tmp_path)
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"source: no_such_thing, numpy\.linalg, sys, six"):
        graph.sources(["numpy", "no_such_thing", "numpy.linalg", "sys", "six"])


def test_modules_of_a_package_go_by_their_full_names_and_the_first_source_wins(tmp_path: Path) -> None:
    one = written(
        tmp_path / "one/pack", {"__init__.py": "A = 1", "part/__init__.py": "B = 1", "part.py": "C = 1"}
    )
    other = written(tmp_path / "other", {"pack/__init__.py": "D = 1", "tests/x.py": "E = 1", "y.py": "F = 1"})
    both = graph.build([one, other]).triples
    assert {(t.head, t.tail) for t in both} == {("pack", "A"), ("pack.part", "B"), ("y", "F")}
    with pytest.raises(ValueError, match="no Python source"):
        graph.build(written(tmp_path / "none", {"x.py": ""}))


@given(st.text())
def test_words_and_tokens_spell_the_text_again(text: str) -> None:
    described = tokens.train(["self", "self", "return"], 300)
    encoded = tokens.Tokens(described).encode(text)
    assert "".join(encoded.spelled) == "".join(tokens.split(text)) == text
    assert tokens.Tokens(described).decode(encoded.ids.tolist()) == text
    assert encoded.ids.min(initial=99) >= len(tokens.SPECIAL)
    assert len(np.unique(encoded.word)) == len(encoded.spelled)


def test_words_are_names_numbers_blanks_and_single_marks() -> None:
    text = "if x_1 >= 3.5e7:\n\n    # [MASK] it"
    assert list(tokens.split(text)) == [
        "if", " ", "x_1", " ", ">", "=", " ", "3.5e7", ":", "\n\n    ", "#", " ", "[", "MASK", "]", " ", "it"
    ]  # fmt: skip
    encoder = tokens.Tokens(tokens.train([*tokens.split(text)] * 2, 300))
    encoded = encoder.encode(text)
    assert tokens.MASK not in encoded.ids
    names = {encoded.spelled[word] for word in encoded.word[encoded.identifier]}
    assert names == {"x_1", "MASK", "it"}
    cut = encoder.encode(text, 5)
    assert cut.ids.tolist() == encoded.ids[:5].tolist()


def test_a_word_is_found_by_its_first_mention() -> None:
    encoder = tokens.Tokens(tokens.train([], 300))  # no merges: a token is a byte
    text = encoder.encode("ab = b + ab", 7)
    assert (text.find("ab"), text.find("b"), text.find("c")) == ((0, 2), (5, 1), None)
    assert encoder.encode("x = long", 6).find("long") == (4, 2)  # the cut goes through the word
    assert encoder.encode("x = long", 4).find("long") is None


def test_a_vocabulary_must_have_room_for_every_byte() -> None:
    with pytest.raises(ValueError, match="vocabulary: 200 has no room for 258"):
        tokens.train(["x"], 200)


def test_the_corpus_depends_on_no_hash_seed_no_threads_and_no_order_of_files(
    code: Path, tmp_path: Path
) -> None:
    for path in sorted((p for p in code.rglob("*") if p.is_file()), reverse=True):
        copy = tmp_path / path.relative_to(code)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    script = (
        "import sys; from pathlib import Path; from graphmer import corpus, graph\n"
        f"print(corpus.Corpus.build(graph.build(Path(sys.argv[1])), held_out=0.25, **{SIZES}).fingerprint())"
    )
    printed = set()
    for folder, seed, threads, parallel in ((code, "1", "1", "false"), (tmp_path, "2", "4", "true")):
        environment = {
            "PYTHONHASHSEED": seed,
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": parallel,
        }
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder)],
            cwd=JOB, env=os.environ | environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        printed.add(done.stdout)
    assert len(printed) == 1


def test_held_out_modules_give_nothing_to_training(whole: graph.Graph, made: Corpus) -> None:
    assert 0 < made.held_out.sum() < len(made.held_out) / 2
    apart = {p.module for p, held_out in zip(whole.passages, made.held_out, strict=True) if held_out}
    assert not apart & {
        p.module for p, held_out in zip(whole.passages, made.held_out, strict=True) if not held_out
    }
    other = Corpus.build(source.replaced(whole, made.held_out), held_out=0.25, **SIZES)
    known = int(made.entity_known.sum())
    assert made.entity_known[:known].all()
    assert 0 < known < len(made.entities)
    assert other.tokenizer == made.tokenizer
    assert other.entities[:known] == made.entities[:known]
    assert not other.entity_known[known:].any()
    assert np.array_equal(other.entity_kinds[:known], made.entity_kinds[:known])
    assert not made.entity_kinds[known:].any()
    assert np.array_equal(
        other.facts[~other.held_out[other.facts[:, PASSAGE]]],
        made.facts[~made.held_out[made.facts[:, PASSAGE]]],
    )
    assert "secret" not in other.tokenizer


def test_facts_hang_from_the_mention_of_their_head(whole: graph.Graph, made: Corpus) -> None:
    decoder = tokens.Tokens(made.tokenizer)
    mentioned = 0
    for passage, anchor, span, _, head, _ in made.facts.tolist():
        first, end = made.starts[passage], made.starts[passage + 1]
        assert 0 <= anchor <= anchor + span <= end - first
        mention = decoder.decode(made.tokens[first + anchor : first + anchor + span])
        if mention == made.entities[head]:
            mentioned += 1
        else:
            assert (anchor, span) == (0, 0) or anchor + span == end - first  # not mentioned, or cut
    assert mentioned > 0.8 * len(made.facts)
    said = {
        (number, t.relation, corpus.surface(t.head), corpus.surface(t.tail))
        for number, p in enumerate(whole.passages)
        for t in p.triples
    }
    names = made.entities
    stated = [(f[PASSAGE], made.relations[f[RELATION]], names[f[HEAD]], names[f[TAIL]]) for f in made.facts]
    assert len(stated) == len(set(stated))
    assert set(stated) == said


def test_what_a_small_module_becomes(tmp_path: Path) -> None:
    made = Corpus.build(
        graph.build(written(tmp_path, {"m.py": SAMPLE})), vocabulary=258, passage_tokens=40, held_out=0
    )
    decoder = tokens.Tokens(made.tokenizer)
    assert np.diff(made.starts).tolist() == [40, 40, 40]
    assert decoder.decode(made.tokens[:40]) == SAMPLE[:40]
    mentions = {
        (made.relations[f[RELATION]], made.entities[f[HEAD]], made.entities[f[TAIL]]): (f[ANCHOR], f[SPAN])
        for f in made.facts
    }
    assert mentions == {
        ("contains", "m", "Box"): (0, 0),
        ("inherits_from", "Box", "dict"): (6, 3),
        ("has_method", "Box", "size"): (6, 3),
        ("has_parameter", "size", "unit"): (8, 4),
        ("defaults_to", "unit", "str"): (19, 4),
    }
    kinds = dict(zip(made.entities, made.entity_kinds.tolist(), strict=True))
    assert kinds["Box"] == ontology.mask(frozenset({"class"}))
    assert kinds["unit"] == ontology.mask(frozenset({"parameter"}))
    assert kinds["str"] == ontology.mask(frozenset({"value"}))


def test_kinds_follow_from_roles() -> None:
    relations = ("contains", "inherits_from", "likes")
    facts = np.array([[0, 0, 1], [0, 0, 2], [1, 1, 3], [2, 4, 5]])
    assert [ontology.kinds_of(facts, relations, 7)[i] for i in range(7)] == [
        ontology.mask(frozenset(kinds))
        for kinds in (
            {"module", "class", "function"},  # it contains something, so it may be any of these
            {"class"},  # it is contained, and inherits
            {"class", "function"},
            {"class"},
            {"other"},
            {"other"},
            (),
        )
    ]
    assert set(graph.RELATIONS) == set(ontology.ONTOLOGY)
    assert all(rule.head | rule.tail <= set(ontology.KINDS) for rule in ontology.ONTOLOGY.values())


def test_it_travels_as_tensors_and_is_no_other(made: Corpus) -> None:
    state = made.state_dict()
    again = Corpus.from_state({name: tensor.clone() for name, tensor in state.items()})
    assert again.fingerprint() == made.fingerprint()
    assert (again.entities, again.relations, again.tokenizer) == (
        made.entities,
        made.relations,
        made.tokenizer,
    )
    assert again.facts.dtype == made.facts.dtype
    again.load_state_dict(state)
    state["facts"] = state["facts"].clone()
    state["facts"][0, TAIL] += 1
    with pytest.raises(ValueError, match="the checkpoint belongs to another corpus"):
        made.load_state_dict(state)


def test_a_split_that_leaves_nothing_is_refused(whole: graph.Graph) -> None:
    with pytest.raises(ValueError, match="leaves none to train on"):
        Corpus.build(whole, held_out=1.0, **SIZES)


def test_dotted_names_go_by_their_last_part_and_other_names_whole() -> None:
    names = ["os.path.join", "join", "src/a.py", "1.5", "a..b", "é.ü"]
    assert [corpus.surface(name) for name in names] == ["join", "join", "src/a.py", "1.5", "a..b", "ü"]
