"""A graph as arrays: tokens of passages, facts anchored to the words they are about, and the split.

Decides the split by module, the vocabulary, and the name of an entity in text, which is the last part of its
dotted name. Everything learnt from data comes from training modules. Held-out modules give no word, no kind
and no known entity. Must never know rows, masks or models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from graphmer import ontology, tokens
from graphmer.graph import RELATIONS, Graph, Passage

if TYPE_CHECKING:
    import torch

ENTITY_TOKENS = 12
PASSAGE, ANCHOR, SPAN, RELATION, HEAD, TAIL = range(6)  # the columns of `Corpus.facts`


@dataclass(frozen=True, eq=False)
class Corpus:
    """S tokens of P passages, and F facts between E entities. The known entities come first.

    An anchor is the index of a token in its passage: the first token of the first mention of the fact's
    head. A span is the number of tokens of that mention. Both are 0 if the passage does not mention the
    head. A fact is stated once in a passage, but may be in several. Kinds are bits of `ontology.KINDS`, from
    training facts only.
    """

    vocabulary: int  # embedding rows: the requested size, larger than every id
    tokenizer: str  # JSON for tokens.Tokens
    relations: tuple[str, ...]
    entities: tuple[str, ...]  # (E,)
    entity_tokens: NDArray[np.int32]  # (E, ENTITY_TOKENS), cut or padded with PAD
    entity_kinds: NDArray[np.int64]  # (E,)
    entity_known: NDArray[np.bool_]  # (E,) occurs in a training fact
    tokens: NDArray[np.int32]  # (S,)
    words: NDArray[np.int32]  # (S,) number of the word in its passage
    identifiers: NDArray[np.bool_]  # (S,)
    starts: NDArray[np.int64]  # (P + 1,)
    held_out: NDArray[np.bool_]  # (P,)
    modules: NDArray[np.int32]  # (P,)
    facts: NDArray[np.int32]  # (F, 6): PASSAGE, ANCHOR, SPAN, RELATION, HEAD, TAIL; by passage

    @classmethod
    def build(cls, graph: Graph, *, vocabulary: int, passage_tokens: int, held_out: float) -> Corpus:
        """Splits by module, trains the tokenizer and encodes. Passages are cut to `passage_tokens`.

        The share `held_out` of the modules is chosen by the hash of their names. Raises ValueError if that
        leaves nothing to train on, or if the vocabulary is too small.
        """
        passages = graph.passages
        apart = np.array([_share(passage.module) < held_out for passage in passages], dtype=np.bool_)
        if apart.all():
            raise ValueError(f"held_out: {held_out} of the modules leaves none to train on")
        described = tokens.train(_words(passages, apart, passage_tokens), vocabulary)
        encoder = tokens.Tokens(described)
        relations = _relations(passages)
        entities, known = _entities(passages, apart)
        facts = []
        encoded = []
        numbers = (
            {name: i for i, name in enumerate(relations)},
            {name: i for i, name in enumerate(entities)},
        )
        for number, passage in enumerate(passages):
            text = encoder.encode(passage.text or passage.name, passage_tokens)
            encoded.append(text)
            facts += [(number, *row) for row in _facts(passage, text, *numbers)]
        table = np.array(facts, dtype=np.int32).reshape(-1, 6)
        trained = table[~apart[table[:, PASSAGE]]]
        modules = {name: i for i, name in enumerate(dict.fromkeys(passage.module for passage in passages))}
        return cls(
            vocabulary=vocabulary,
            tokenizer=described,
            relations=relations,
            entities=entities,
            entity_tokens=_names(entities, encoder),
            entity_kinds=ontology.kinds_of(trained[:, RELATION:], relations, len(entities)),
            entity_known=np.arange(len(entities)) < known,
            tokens=np.concatenate([text.ids for text in encoded]),
            words=np.concatenate([text.word for text in encoded]),
            identifiers=np.concatenate([text.identifier for text in encoded]),
            starts=np.cumsum([0, *(len(text.ids) for text in encoded)], dtype=np.int64),
            held_out=apart,
            modules=np.array([modules[passage.module] for passage in passages], dtype=np.int32),
            facts=table,
        )

    def fingerprint(self) -> str:
        """sha256 of everything that batches are made from."""
        digest = hashlib.sha256()
        for name, value in _packed(self).items():
            digest.update(repr((name, value.dtype.str, value.shape)).encode())
            digest.update(np.ascontiguousarray(value).data)
        return digest.hexdigest()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Everything as tensors. Texts are UTF-8 bytes; several texts are joined by NUL."""
        import torch

        return {name: torch.from_numpy(value) for name, value in _packed(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, torch.Tensor]) -> Corpus:
        """The corpus that `state_dict` described."""
        arrays = {each.name: state[each.name].cpu().numpy() for each in fields(cls)}
        texts = {name: arrays.pop(name).tobytes().decode() for name in ("tokenizer", "relations", "entities")}
        return cls(
            vocabulary=int(arrays.pop("vocabulary")),
            tokenizer=texts["tokenizer"],
            relations=tuple(texts["relations"].split("\0")),
            entities=tuple(texts["entities"].split("\0")),
            **arrays,
        )

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raises ValueError unless the state is of this same corpus, which never changes."""
        if Corpus.from_state(state).fingerprint() != self.fingerprint():
            raise ValueError("the checkpoint belongs to another corpus")


def surface(entity: str) -> str:
    """The name of an entity in text: the last part of its dotted name, or else the whole name."""
    dotted = entity.split(".")
    return dotted[-1] if all(part.isidentifier() for part in dotted) else entity


def _share(module: str) -> float:
    """A fixed number in [0, 1) for a module, independent of the order in which modules are read."""
    return int.from_bytes(hashlib.sha256(b"split " + module.encode()).digest()[:6], "big") / 2.0**48


def _words(passages: Sequence[Passage], apart: NDArray[np.bool_], most: int) -> Iterator[str]:
    """The words of training passages. Reads no more than needed: a token has at least one byte of a word."""
    for passage, held_out in zip(passages, apart, strict=True):
        if not held_out:
            yield from islice(tokens.split(passage.text or passage.name), most)


def _relations(passages: Sequence[Passage]) -> tuple[str, ...]:
    used = {triple.relation for passage in passages for triple in passage.triples}
    return (*(name for name in RELATIONS if name in used), *sorted(used - set(RELATIONS)))


def _entities(passages: Sequence[Passage], apart: NDArray[np.bool_]) -> tuple[tuple[str, ...], int]:
    """All names, sorted, with the names of training facts first, and the number of those."""
    sides: tuple[set[str], set[str]] = set(), set()
    for passage, held_out in zip(passages, apart, strict=True):
        for triple in passage.triples:
            sides[int(held_out)].update((surface(triple.head), surface(triple.tail)))
    known, unknown = sides[0], sides[1] - sides[0]
    return (*sorted(known), *sorted(unknown)), len(known)


def _facts(
    passage: Passage, text: tokens.Encoded, relations: Mapping[str, int], entities: Mapping[str, int]
) -> Iterator[tuple[int, int, int, int, int]]:
    """(anchor, span, relation, head, tail) of the passage's distinct facts, in source order."""
    mentions: dict[str, tuple[int, int]] = {}
    seen = set()
    for triple in passage.triples:
        head = surface(triple.head)
        if head not in mentions:
            mentions[head] = text.find(head) or (0, 0)
        fact = relations[triple.relation], entities[head], entities[surface(triple.tail)]
        if fact not in seen:
            seen.add(fact)
            yield (*mentions[head], *fact)


def _names(entities: Sequence[str], encoder: tokens.Tokens) -> NDArray[np.int32]:
    table = np.full((len(entities), ENTITY_TOKENS), tokens.PAD, dtype=np.int32)
    for row, entity in zip(table, entities, strict=True):
        ids = encoder.encode(entity, ENTITY_TOKENS).ids
        row[: len(ids)] = ids
    return table


def _packed(corpus: Corpus) -> dict[str, NDArray[np.generic]]:
    """The fields as arrays, by name."""
    packed = {}
    for each in fields(corpus):
        value = getattr(corpus, each.name)
        if isinstance(value, tuple):
            value = "\0".join(value)
        if isinstance(value, str):
            value = np.frombuffer(bytearray(value.encode()), dtype=np.uint8)
        packed[each.name] = np.asarray(value)
    return packed
