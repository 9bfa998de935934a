"""Source to train on: packages of the standard library, a test suite, and a file that does not parse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from graphmer.graph import Graph, Passage, Triple

from tests.jobs.graphmer_samples import copied


def copy(folder: Path) -> Path:
    copied(folder)
    (folder / "json/tests").mkdir()
    (folder / "json/tests/test_it.py").write_text("def test_secret(): pass\n")
    (folder / "broken.py").write_text("def (:\n")
    return folder


def replaced(graph: Graph, held_out: Iterable[bool]) -> Graph:
    """The graph, but its held-out passages have other text and as many facts about other entities."""
    sides = zip(graph.passages, held_out, strict=True)
    return Graph(tuple(_secret(passage) if apart else passage for passage, apart in sides))


def _secret(passage: Passage) -> Passage:
    facts = (Triple("secret", t.relation, f"secret{i}") for i, t in enumerate(passage.triples))
    return replace(passage, text="secret " * 9, triples=tuple(facts))
