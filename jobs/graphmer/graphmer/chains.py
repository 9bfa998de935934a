"""Leafy chains: a passage's words as roots, its facts as leaves hanging from the words they speak of.

After GraphMERT (arXiv 2510.09580). Decides the vocabulary, which words become roots and which leaves share
a chain, and which modules are held out. Must never know batches, masks or models.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from graphmer.graph import RELATIONS, Graph, Passage

PAD, MASK, UNKNOWN = 0, 1, 2
SPECIAL = ("[PAD]", "[MASK]", "[UNKNOWN]")
_WORD = re.compile(
    r"""(?s)(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*)|(\w+|[().=@])"""
)

Leaf = tuple[int, int, int]  # index of its root, relation id, word id of the tail


@dataclass(frozen=True)
class Chain:
    """Roots are word ids; leaves hang from them."""

    roots: tuple[int, ...]
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True)
class Corpus:
    """Chains to train on and chains of modules held out, over one vocabulary made from the former."""

    vocabulary: tuple[str, ...]
    train: tuple[Chain, ...]
    held_out: tuple[Chain, ...]

    def fingerprint(self) -> str:
        """sha256 over everything a batch is made from."""
        return hashlib.sha256(repr((self.vocabulary, self.train, self.held_out)).encode()).hexdigest()


def encode(graph: Graph, *, roots: int, leaves: int, vocabulary: int, held_out: float) -> Corpus:
    """Splits by module and encodes: at most `roots` words and `leaves` facts a chain, all facts packed.

    The share `held_out` of modules, chosen by the hash of their names, gives no word to the vocabulary. A
    held-out chain that repeats one trained on is dropped, so that nothing leaks.
    """
    apart = {p.module for p in graph.passages if _share(p.module) < held_out}
    words = _vocabulary((p for p in graph.passages if p.module not in apart), roots, vocabulary)
    ids = {word: i for i, word in enumerate(words)}
    train: list[Chain] = []
    test: list[Chain] = []
    for passage in graph.passages:
        (test if passage.module in apart else train).extend(_chains(passage, ids, roots, leaves))
    known = set(train)
    return Corpus(words, tuple(train), tuple(chain for chain in test if chain not in known))


def words_of(text: str) -> Iterator[str]:
    """Names, numbers and the few marks that tell their roles; strings and comments are passed over."""
    return (match[1] for match in _WORD.finditer(text) if match[1])


def surface(entity: str) -> str:
    """The word an entity goes by in the text: the last part of its dotted name."""
    return entity.rpartition(".")[2]


def _share(module: str) -> float:
    """A fixed number in [0, 1) for a module, independent of the order that `graph.build` reads in."""
    return int.from_bytes(hashlib.sha256(b"split " + module.encode()).digest()[:6], "big") / 2.0**48


def _vocabulary(passages: Iterable[Passage], roots: int, size: int) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for passage in passages:
        counts.update(islice(words_of(passage.text), roots))
        counts.update(surface(triple.tail) for triple in passage.triples)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return (*SPECIAL, *(word for word, _ in ranked[: size - len(SPECIAL)]))


def _chains(passage: Passage, ids: dict[str, int], roots: int, leaves: int) -> Iterator[Chain]:
    words = list(islice(words_of(passage.text), roots))
    if not words:
        return
    facts = []
    for triple in passage.triples:
        head = surface(triple.head)
        anchor = words.index(head) if head in words else 0  # a module's name is not among its words
        facts.append((anchor, RELATIONS.index(triple.relation), ids.get(surface(triple.tail), UNKNOWN)))
    encoded = tuple(ids.get(word, UNKNOWN) for word in words)
    for group in _spread(facts, leaves):
        yield Chain(encoded, tuple(group))


def _spread(items: Sequence[Leaf], most: int) -> Iterator[Sequence[Leaf]]:
    """The items in order, in the fewest groups of at most `most`, of sizes as equal as can be."""
    groups = -(-len(items) // most)
    for i in range(groups):
        yield items[len(items) * i // groups : len(items) * (i + 1) // groups]
