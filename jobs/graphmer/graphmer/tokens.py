"""Byte-pair tokens of source text: names, numbers, runs of blanks and single marks, each split into subwords.

Decides where words end, and trains the subwords. The same texts give the same tokenizer, whatever
the hash seed and the number of threads. It works on bytes, so no text is unknown. Must never know
facts, masks or models.
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
SPECIAL = ("[PAD]", "[MASK]")  # no text contains them: a bracket is its own word
_WORD = re.compile(r"[^\W\d]\w*|\d\w*(?:\.\d\w*)*|\s+|[^\w\s]")
_LEAST = len(SPECIAL) + 256  # every byte is a token


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text as n tokens: `ids` (n,), and `word` (n,), the number of the word that each token is part of.

    `identifier` (n,) is true for names, and false for keywords, numbers and marks. `spelled` has the words.
    """

    ids: NDArray[np.int32]
    word: NDArray[np.int32]
    identifier: NDArray[np.bool_]
    spelled: tuple[str, ...]

    def find(self, word: str) -> tuple[int, int] | None:
        """The first token of a word's first mention, and its number of tokens. None if it
        is not mentioned."""
        if word not in self.spelled:
            return None
        number = self.spelled.index(word)
        first, end = np.searchsorted(self.word, [number, number + 1])
        return (int(first), int(end - first)) if end > first else None


def split(text: str) -> Iterator[str]:
    """The words of a text. Joined, they give the text again."""
    return map(itemgetter(0), _WORD.finditer(text))


def train(words: Iterable[str], size: int) -> str:
    """A tokenizer of at most `size` tokens, trained on these words, as JSON for `Tokens`.

    The order of the input does not matter: words are sorted first, and the library breaks ties between pairs
    by their ids. Raises ValueError if `size` has no room for every byte.
    """
    if size < _LEAST:
        raise ValueError(f"vocabulary: {size} has no room for {_LEAST} tokens (every byte, and the marks)")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else each data worker's fork warns
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
    """Encodes texts with a trained tokenizer, and remembers the words that it has seen."""

    def __init__(self, described: str) -> None:
        self._tokenizer = Tokenizer.from_str(described)
        self._ids: dict[str, list[int]] = {}

    def encode(self, text: str, most: int | None = None) -> Encoded:
        """The text's tokens, but at most the first `most`."""
        spelled = tuple(islice(split(text), most))
        pieces = [self._word(word) for word in spelled]
        sizes = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        names = np.fromiter(map(_is_name, spelled), dtype=np.bool_, count=len(pieces))
        ids = np.fromiter(chain.from_iterable(pieces), dtype=np.int32, count=int(sizes.sum()))
        word = np.repeat(np.arange(len(pieces), dtype=np.int32), sizes)
        return Encoded(ids[:most], word[:most], np.repeat(names, sizes)[:most], spelled)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these tokens."""
        return str(self._tokenizer.decode(list(ids)))

    def _word(self, word: str) -> list[int]:
        ids = self._ids.get(word)
        if ids is None:
            ids = self._ids[word] = self._tokenizer.encode(word).ids
        return ids


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word)
