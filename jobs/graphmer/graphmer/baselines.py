"""The baselines of GraphMER: frequency, TransE and ComplEx, trained here on the same facts and split.

They see only facts, never text. For a head that training does not know, they answer in the order of
frequency. The settings `TRANSE` and `COMPLEX` were chosen on training modules that were set aside, never on
test facts. The number of epochs is chosen in the same way for each corpus. They use their own random
generator, and neither draw from nor set the process's generators. Must never know how ranks are computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphmer.corpus import HEAD, PASSAGE, RELATION, TAIL, Corpus
from graphmer.evaluation import Integers, Stop, Summary, heed, held_out_facts, known_heads, never, rank

HELD_BACK = 0.12  # share of the training modules that is set aside
PATIENCE = 2  # epochs without a better MRR on those

Progress = Callable[[str], None]
Query = Callable[[Tensor, Tensor], Tensor]
Score = Callable[[Tensor, Tensor], Tensor]


def silent(_text: str) -> None:
    return


@dataclass(frozen=True)
class Settings:
    """An embedding model and its training: Adagrad on a softmax over all known entities.

    `dimension` is the count of real numbers in a vector, `epochs` the maximum, `batch` the count of (head,
    relation) pairs. Scores are multiplied by `sharpness`. `n3` weights the cubes of the absolute values of
    the embeddings that a fact uses (arXiv 1806.07297). Initial values are normally distributed. Relations
    have the standard deviation `spread`. Entities lie with `spread` around one common vector, which has the
    standard deviation `common`, so that the popularity of tails is learnt before anything about single heads.
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
    """Ranks tails by their count under the relation in training, then by their count under all relations.

    Counting (head, relation) first would change nothing, because a filtered ranking leaves out the tails that
    training states for the pair.
    """

    def __init__(self, corpus: Corpus) -> None:
        facts = _Facts(corpus)
        counts = np.zeros((facts.relations, len(facts)))
        np.add.at(counts, (facts.triples[:, 1], facts.triples[:, 2]), 1.0)
        counts += counts.sum(0) / (len(facts.triples) + 1.0)  # counts over all relations, scaled below 1
        places = [np.unique(row, return_inverse=True)[1] for row in counts]
        self._places = torch.from_numpy(np.stack(places).astype(np.float32))

    def scores(self, heads: Integers, relations: Integers) -> Tensor:
        """Entity and relation ids (n,) → scores (n, known entities), of which only the
        order has a meaning."""
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
        self._optimizer = torch.optim.Adagrad([self.entities, self.relations], lr=settings.learning_rate)

    def _drawn(self, count: int) -> Tensor:
        return torch.randn(count, self.settings.dimension, generator=self._random)

    def epoch(self, stop: Stop = never) -> float:
        """Trains on every fact once, and returns the mean loss in nats. Raises `Stopped` between batches."""
        loss = 0.0
        for batch in self._facts.batches(self.settings.batch, self._random, self.entities.device):
            heed(stop)
            self._optimizer.zero_grad()
            part = self._loss(batch) / len(batch.tails)
            part.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            loss += part.item() * len(batch.tails)
        return loss / len(self._facts.triples)

    @torch.no_grad()
    def scores(self, heads: Integers, relations: Integers) -> Tensor:
        """Entity and relation ids (n,) → scores (n, known entities)."""
        device = self.entities.device
        columns = torch.from_numpy(self._facts.columns[heads]).to(device)
        head = self.entities[columns.clamp(min=0)]
        query = _QUERY[self.settings.model](head, self.relations[torch.from_numpy(relations).to(device)])
        found = _SCORE[self.settings.model](query, self.entities)
        unknown = columns < 0
        found[unknown] = self._fallback.scores(heads, relations).to(device)[unknown]
        return found

    def _loss(self, batch: _Batch) -> Tensor:
        """The sum over facts of the cross entropy of the true tail against all tails that are not true."""
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
    progress: Progress = silent,
) -> Embeddings:
    """A baseline trained on all training facts. If `epochs` is not given, chooses it on modules set aside."""
    device = device or torch.device("cpu")
    chosen = epochs or _epochs(corpus, settings, seed, device, stop, progress)
    model = Embeddings(corpus, replace(settings, epochs=chosen), seed, device)
    for done in range(1, chosen + 1):
        progress(f"{settings.model}: epoch {done}/{chosen}, loss {model.epoch(stop):.3f}")
    return model


def _epochs(
    corpus: Corpus, settings: Settings, seed: int, device: torch.device, stop: Stop, progress: Progress
) -> int:
    """The number of epochs with the best MRR on training modules set aside, over facts with a known head."""
    apart = _held_back(corpus)
    asked = held_out_facts(apart)
    asked = asked[known_heads(apart, asked)]
    if not len(asked):
        return settings.epochs
    rows = apart.facts[asked].astype(np.int64)
    model = Embeddings(apart, settings, seed, device)
    best, at = 0.0, 1
    for epoch in range(1, settings.epochs + 1):
        model.epoch(stop)
        found = rank(apart, asked, lambda b: model.scores(rows[b, HEAD], rows[b, RELATION]), stop)
        mrr = Summary.of(found.ranks).mrr
        progress(f"{settings.model}: {epoch} epochs, MRR {mrr:.4f} on training modules set aside")
        if mrr > best:
            best, at = mrr, epoch
        elif epoch >= at + PATIENCE:
            break
    return at


def _held_back(corpus: Corpus) -> Corpus:
    """The training part of a corpus, with some of its modules held out."""
    facts = corpus.facts[~corpus.held_out[corpus.facts[:, PASSAGE]]]
    digests = [
        hashlib.sha256(b"back %d" % module).digest() for module in range(int(corpus.modules.max()) + 1)
    ]
    back = np.array([digest[0] < 256 * HELD_BACK for digest in digests])[corpus.modules]
    known = np.zeros_like(corpus.entity_known)
    known[facts[~back[facts[:, PASSAGE]]][:, [HEAD, TAIL]]] = True
    return replace(corpus, facts=facts, held_out=corpus.held_out | back, entity_known=known)


@dataclass(frozen=True)
class _Batch:
    """Pairs of head and relation (p,), and their true tails (n,), each with the row of its pair."""

    heads: Tensor
    relations: Tensor
    rows: Tensor
    tails: Tensor


class _Facts:
    """The training facts by surface, each once: (n, 3) head, relation, tail. Entities are
    given as columns."""

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
        """Yields every fact once, in an order drawn from `random`. The facts of a pair stay together."""
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
    """The negative Euclidean distance, (n, d) and (m, d) → (n, m); TransE (Bordes et al., 2013)."""
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
# Chosen on an eighth of the standard library's training modules, by the MRR over facts with a known head.
TRANSE = Settings("TransE", 128, 20, 512, 0.1, sharpness=3.0, spread=0.1)
COMPLEX = Settings("ComplEx", 256, 20, 512, 0.1, sharpness=1.0, spread=0.001, common=0.5, n3=0.05)
