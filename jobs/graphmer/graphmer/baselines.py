"""What GraphMER is held against: frequency, TransE and ComplEx, trained here on the same facts and split.

They see facts only, never text; a head that training does not know is answered in frequency's order. The
settings, `TRANSE` and `COMPLEX`, were chosen on training modules held back, never on test facts. Seeded by a
generator of their own: the process's are neither drawn from nor set. Must never know how ranks are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphmer.corpus import HEAD, PASSAGE, RELATION, TAIL, Corpus
from graphmer.evaluation import Integers, Stop, heed, never

Progress = Callable[[int, float], None]  # epochs done, mean loss in nats
Query = Callable[[Tensor, Tensor], Tensor]
Score = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Settings:
    """A model of embeddings and how it is trained: Adagrad on a softmax over all known entities.

    `dimension` counts real numbers a vector, `batch` (head, relation) pairs. Scores are multiplied by
    `sharpness`. `n3` weighs the cubes of the absolute values of the embeddings a fact uses (arXiv
    1806.07297). First values are normal: entities by `spread` about one vector, drawn by `common`, so that a
    tail's popularity is learnt before anything of single heads; relations by `spread` alone.
    """

    model: str
    dimension: int
    epochs: int
    batch: int
    learning_rate: float
    sharpness: float
    spread: float
    common: float = 0.0
    n3: float = 0.0


class Frequency:
    """Tails by their count under the relation in training, then by their count under all relations.

    Counting (head, relation) first would change nothing: the tails that training states of the pair are left
    out of a filtered ranking.
    """

    def __init__(self, corpus: Corpus) -> None:
        facts = _Facts(corpus)
        counts = np.zeros((facts.relations, len(facts)))
        np.add.at(counts, (facts.triples[:, 1], facts.triples[:, 2]), 1.0)
        counts += counts.sum(0) / (len(facts.triples) + 1.0)  # of all relations: below 1
        places = [np.unique(row, return_inverse=True)[1] for row in counts]
        self._places = torch.from_numpy(np.stack(places).astype(np.float32))

    def scores(self, heads: Integers, relations: Integers) -> Tensor:
        """Of entity and relation ids (n,), scores (n, known entities): their order alone has a meaning."""
        del heads
        return self._places[torch.from_numpy(relations)]


class Embeddings:
    """Entities and relations as vectors: TransE or ComplEx."""

    def __init__(self, corpus: Corpus, settings: Settings, seed: int, device: torch.device) -> None:
        self.settings = settings
        self._facts = _Facts(corpus)
        self._fallback = Frequency(corpus)
        self._random = torch.Generator().manual_seed(seed)
        common = self._drawn(1) * settings.common
        entities = common + self._drawn(len(self._facts)) * settings.spread
        relations = self._drawn(self._facts.relations) * settings.spread
        self.entities = entities.to(device).requires_grad_()
        self.relations = relations.to(device).requires_grad_()

    def _drawn(self, count: int) -> Tensor:
        return torch.randn(count, self.settings.dimension, generator=self._random)

    def train(self, stop: Stop = never, progress: Progress | None = None) -> None:
        """All epochs. Raises `Stopped`, asked before each batch."""
        rates = [{"params": [self.entities, self.relations]}]
        optimizer = torch.optim.Adagrad(rates, lr=self.settings.learning_rate)
        for epoch in range(self.settings.epochs):
            loss = 0.0
            for batch in self._facts.batches(self.settings.batch, self._random, self.entities.device):
                heed(stop)
                optimizer.zero_grad()
                part = self._loss(batch) / len(batch.tails)
                part.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                loss += part.item() * len(batch.tails)
            if progress is not None:
                progress(epoch + 1, loss / len(self._facts.triples))

    @torch.no_grad()
    def scores(self, heads: Integers, relations: Integers) -> Tensor:
        """Of entity and relation ids (n,), scores (n, known entities)."""
        device = self.entities.device
        columns = torch.from_numpy(self._facts.columns[heads]).to(device)
        head = self.entities[columns.clamp(min=0)]
        query = _QUERY[self.settings.model](head, self.relations[torch.from_numpy(relations).to(device)])
        found = _SCORE[self.settings.model](query, self.entities)
        unknown = columns < 0
        found[unknown] = self._fallback.scores(heads, relations).to(device)[unknown]
        return found

    def _loss(self, batch: _Batch) -> Tensor:
        """Sum over facts of the cross entropy of the true tail among it and all that are not true."""
        settings = self.settings
        head, relation = self.entities[batch.heads], self.relations[batch.relations]
        query = _QUERY[settings.model](head, relation)
        scores = settings.sharpness * _SCORE[settings.model](query, self.entities)
        true = scores[batch.rows, batch.tails]
        false = scores.index_put((batch.rows, batch.tails), scores.new_tensor(-torch.inf)).logsumexp(1)
        loss = (torch.logaddexp(true, false[batch.rows]) - true).sum()
        if settings.n3:
            times = torch.bincount(batch.rows, minlength=len(batch.heads))
            pairs = (_cubes(head) + _cubes(relation)) * times
            loss = loss + settings.n3 * (pairs.sum() + _cubes(self.entities[batch.tails]).sum())
        return loss


def train(
    corpus: Corpus,
    settings: Settings,
    *,
    seed: int,
    epochs: int | None = None,
    device: torch.device | None = None,
    stop: Stop = never,
    progress: Progress | None = None,
) -> Embeddings:
    """A baseline trained on the corpus' training facts, for `settings.epochs` unless told otherwise."""
    settings = settings if epochs is None else replace(settings, epochs=epochs)
    model = Embeddings(corpus, settings, seed, device or torch.device("cpu"))
    model.train(stop, progress)
    return model


@dataclass(frozen=True)
class _Batch:
    """Pairs of head and relation (p,), and for each of their true tails (n,) the row of its pair."""

    heads: Tensor
    relations: Tensor
    rows: Tensor
    tails: Tensor


class _Facts:
    """The training's facts by surface, each once: (n, 3) head, relation, tail; entities are columns."""

    def __init__(self, corpus: Corpus) -> None:
        facts = corpus.facts.astype(np.int64)
        facts = facts[~corpus.held_out[facts[:, PASSAGE]]]
        known = np.flatnonzero(corpus.entity_known)
        self.columns = np.full(len(corpus.entities), -1, dtype=np.int64)
        self.columns[known] = np.arange(len(known))
        self.relations = len(corpus.relations)
        named = [self.columns[facts[:, HEAD]], facts[:, RELATION], self.columns[facts[:, TAIL]]]
        self.triples: Integers = np.unique(np.stack(named, axis=1), axis=0)
        self._size = len(known)

    def __len__(self) -> int:
        """Known entities."""
        return self._size

    def batches(self, size: int, random: torch.Generator, device: torch.device) -> Iterator[_Batch]:
        """Every fact once, in an order drawn from `random`; the facts of a pair stay together."""
        pairs, counts = np.unique(self.triples[:, :2], axis=0, return_counts=True)
        starts = np.cumsum(counts) - counts  # triples are sorted by pair
        order: NDArray[np.int64] = torch.randperm(len(pairs), generator=random).numpy()
        for first in range(0, len(order), size):
            chosen = order[first : first + size]
            rows = np.repeat(np.arange(len(chosen)), counts[chosen])
            within = np.arange(len(rows)) - np.repeat(
                np.cumsum(counts[chosen]) - counts[chosen], counts[chosen]
            )
            tails = self.triples[starts[chosen][rows] + within, 2]
            arrays = pairs[chosen, 0], pairs[chosen, 1], rows, tails
            yield _Batch(*(torch.from_numpy(array).to(device) for array in arrays))


def _translated(head: Tensor, relation: Tensor) -> Tensor:
    return head + relation


def _nearness(query: Tensor, tails: Tensor) -> Tensor:
    """Minus the Euclidean distance, (n, d) and (m, d) → (n, m); TransE (Bordes et al., 2013)."""
    squares = (query * query).sum(1, keepdim=True) + (tails * tails).sum(1) - 2.0 * query @ tails.T
    return -squares.clamp(min=1e-9).sqrt()


def _turned(head: Tensor, relation: Tensor) -> Tensor:
    """The complex product; real parts in the first half. ComplEx: Re⟨h, r, conj t⟩ (arXiv 1606.06357)."""
    (a, b), (c, d) = head.chunk(2, dim=-1), relation.chunk(2, dim=-1)
    return torch.cat([a * c - b * d, a * d + b * c], dim=-1)


def _product(query: Tensor, tails: Tensor) -> Tensor:
    return query @ tails.T


def _cubes(vectors: Tensor) -> Tensor:
    """(n, d) complex → (n,): the sum of the cubes of their absolute values."""
    real, imaginary = vectors.chunk(2, dim=-1)
    return (real * real + imaginary * imaginary + 1e-12).pow(1.5).sum(-1)


_QUERY: dict[str, Query] = {"TransE": _translated, "ComplEx": _turned}
_SCORE: dict[str, Score] = {"TransE": _nearness, "ComplEx": _product}
TRANSE = Settings("TransE", 128, 5, 512, 0.1, sharpness=3.0, spread=0.1)
COMPLEX = Settings("ComplEx", 256, 3, 512, 0.05, sharpness=1.0, spread=0.001, common=0.3, n3=0.02)
