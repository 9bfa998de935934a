"""Byte-pair tokens of source text: names, numbers, runs of blanks and single marks, each cut into subwords.

Decides where words end and trains the subwords; the same texts give the same tokenizer, whatever the hash
seed and the number of threads. Byte-level, so no text is unknown. Must never know facts, masks or models.
"""

from __future__ import annotations

import keyword
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, MASK = 0, 1
SPECIAL = ("[PAD]", "[MASK]")  # no text spells them: a bracket is a word of its own
_WORD = re.compile(r"[^\W\d]\w*|\d\w*(?:\.\d\w*)*|\s+|[^\w\s]")
_LEAST = len(SPECIAL) + 256  # every byte is a token


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text as n tokens, `ids` (n,), each with the number of the word it is part of, `word` (n,).

    `identifier` (n,) tells names from keywords, numbers and marks; `spelled` are the words themselves.
    """

    ids: NDArray[np.int32]
    word: NDArray[np.int32]
    identifier: NDArray[np.bool_]
    spelled: tuple[str, ...]

    def find(self, word: str) -> tuple[int, int] | None:
        """The first token of the first mention of a word and how many tokens it has; None if it has none."""
        if word not in self.spelled:
            return None
        number = self.spelled.index(word)
        first, end = np.searchsorted(self.word, [number, number + 1])
        return (int(first), int(end - first)) if end > first else None


def split(text: str) -> Iterator[str]:
    """The words of a text; joined they give the text again."""
    return map(itemgetter(0), _WORD.finditer(text))


def train(words: Iterable[str], size: int) -> str:
    """A tokenizer of at most `size` tokens made from these words, as JSON for `Tokens`.

    Words go in sorted, and ties between pairs are broken by their ids in the library: the order of the
    input does not matter. Raises ValueError where `size` has no room for every byte.
    """
    if size < _LEAST:
        raise ValueError(f"vocabulary: {size} has no room for {_LEAST} tokens (every byte, and the marks)")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else each data worker's fork is warned of
    counts = Counter(words)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(([word] * counts[word] for word in sorted(counts)), trainer)
    return str(tokenizer.to_str())


class Tokens:
    """Encodes texts with a trained tokenizer; remembers the words it has seen."""

    def __init__(self, described: str) -> None:
        self._tokenizer = Tokenizer.from_str(described)
        self._ids: dict[str, list[int]] = {}

    def encode(self, text: str, most: int | None = None) -> Encoded:
        """The text's tokens, the first `most` where it has more."""
        spelled = tuple(islice(split(text), most))
        pieces = [self._word(word) for word in spelled]
        sizes = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        names = np.fromiter(map(_is_name, spelled), dtype=np.bool_, count=len(pieces))
        ids = np.fromiter(chain.from_iterable(pieces), dtype=np.int32, count=int(sizes.sum()))
        word = np.repeat(np.arange(len(pieces), dtype=np.int32), sizes)
        return Encoded(ids[:most], word[:most], np.repeat(names, sizes)[:most], spelled)

    def decode(self, ids: Iterable[int]) -> str:
        """The text that these tokens spell."""
        return str(self._tokenizer.decode(list(ids)))

    def _word(self, word: str) -> list[int]:
        ids = self._ids.get(word)
        if ids is None:
            ids = self._ids[word] = self._tokenizer.encode(word).ids
        return ids


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word)
