"""How well a model predicts held-out facts: filtered ranks, masked-token loss, ontology violations.

A fact (head, relation, tail) of a held-out module becomes the query (head, relation, ?) over all known
entities. Other true tails of (head, relation), in training or held out, are left out of the ranking (arXiv
1412.6575 calls this filtered). Entities are compared by their surface, so a held-out fact that training also
states is not a query. Everything runs in blocks and without gradients. It draws no random numbers, so that a
training resumes bit for bit around it. Must never know how a model or a baseline was trained.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from graphmer import plan
from graphmer.corpus import HEAD, PASSAGE, RELATION, TAIL, Corpus
from graphmer.ontology import ONTOLOGY, mask

QUERIES = 256  # scored at a time; 256 × 20,000 scores take 20 MB
ENTITIES = 2048  # embedded at a time
LEAVES = 10  # facts queried with one reading of a passage
ROWS = 8  # read at a time: about a second on a CPU at 768 columns, so that a stop is noticed in time
SAMPLED_ROWS = 64  # rows for the masked-token loss if the facts are a sample, too

Integers = NDArray[np.int64]
Stop = Callable[[], bool]
Scores = Callable[[Integers], Tensor]  # indices into the list of facts (n,) → scores (n, known entities)


class Stopped(Exception):
    """A stop was requested in the middle of an evaluation. Nothing was changed."""


def never() -> bool:
    return False


def heed(stop: Stop) -> None:
    """Raises `Stopped` if a stop was requested."""
    if stop():
        raise Stopped


class Encoder(Protocol):
    """What the evaluation needs of a model. `graphmer.model.Encoder` has the contract."""

    training: bool

    def __call__(self, batch: Mapping[str, Tensor], entities: Tensor) -> Tensor: ...
    def entity(self, ids: Tensor, entities: Tensor) -> Tensor: ...
    def query(self, heads: Tensor, relations: Tensor, entities: Tensor) -> Tensor: ...
    def guess(self, hidden: Tensor) -> Tensor: ...
    def train(self, mode: bool = True) -> object: ...


@dataclass(frozen=True)
class Summary:
    """Mean reciprocal rank and the shares of ranks up to 1 and 10, over `count` facts; NaN
    if there are none."""

    mrr: float
    hits_1: float
    hits_10: float
    count: int

    @classmethod
    def of(cls, ranks: NDArray[np.float64]) -> Summary:
        if not len(ranks):
            return cls(math.nan, math.nan, math.nan, 0)
        hits_1, hits_10 = (float((ranks <= most).mean()) for most in (1, 10))
        return cls(float((1.0 / ranks).mean()), hits_1, hits_10, len(ranks))


@dataclass(frozen=True)
class Ranking:
    """For each fact (n,): the filtered rank of the true tail, and the entity with the highest score."""

    ranks: NDArray[np.float64]
    predicted: Integers


@dataclass(frozen=True)
class Evaluation:
    """An encoder's rankings of the same facts, from the graph alone and with the passage's text. Also the
    nats per masked token, and the percentage of the graph's first guesses that break the ontology."""

    graph: Ranking
    text: Ranking
    word_loss: float
    violations: float

    def metrics(self) -> dict[str, float]:
        """For `training.report`. "mrr" is from the graph alone; compare it with TransE and ComplEx."""
        graph, text = Summary.of(self.graph.ranks), Summary.of(self.text.ranks)
        return {
            "mrr": graph.mrr,
            "hits_1": graph.hits_1,
            "hits_10": graph.hits_10,
            "text_mrr": text.mrr,
            "text_hits_1": text.hits_1,
            "text_hits_10": text.hits_10,
            "held_out_word_loss": self.word_loss,
            "ontology_violations": self.violations,
        }


def ranks(scores: Tensor, truth: Tensor, others: Sequence[Integers]) -> NDArray[np.float64]:
    """Ranks of the true columns, from 1. `others` are the columns of each row left out of the ranking.

    scores (n, E) and truth (n,) are on the host. Among equal scores, the rank is the mean of the best and the
    worst place (the realistic rank: arXiv 2002.06914). A true score of NaN ranks last; any other NaN ranks
    below every number.
    """
    rows = torch.from_numpy(np.repeat(np.arange(len(others)), [len(o) for o in others]))
    columns = torch.from_numpy(np.concatenate([*others, np.empty(0, np.int64)]))
    other = columns != truth[rows]
    rows, columns = rows[other], columns[other]
    own = scores.gather(1, truth[:, None])
    filtered = scores[rows, columns]
    above = (scores > own).sum(1) - _count(rows, filtered > own[rows, 0], len(own))
    level = (scores == own).sum(1) - _count(rows, filtered == own[rows, 0], len(own)) - 1
    last = scores.shape[1] - _count(rows, torch.ones_like(rows), len(own))
    exact = 1.0 + above + 0.5 * level
    found: NDArray[np.float64] = torch.where(own[:, 0].isnan(), last, exact).double().numpy()
    return found


def _count(rows: Tensor, which: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int64).index_add_(0, rows, which.long())


class Candidates:
    """The known entities as columns, and which of them are true tails of (head, relation) in any module."""

    def __init__(self, corpus: Corpus) -> None:
        self.entities: Integers = np.flatnonzero(corpus.entity_known)
        self._columns = np.full(len(corpus.entities), -1, dtype=np.int64)
        self._columns[self.entities] = np.arange(len(self.entities))
        self._relations = len(corpus.relations)
        facts = corpus.facts.astype(np.int64)
        keys, columns = self._keys(facts), self._columns[facts[:, TAIL]]
        true = np.unique(np.stack([keys, columns], axis=1)[columns >= 0], axis=0)
        self._true_keys, self._true = true[:, 0], true[:, 1]

    def __len__(self) -> int:
        return len(self.entities)

    def columns(self, entities: Integers) -> Integers:
        """Entity ids → columns; −1 for an unknown one."""
        return self._columns[entities]

    def true(self, facts: Integers) -> list[Integers]:
        """For rows of `Corpus.facts`: all columns that are true for the row's head and
        relation, its own too."""
        keys = self._keys(facts)
        first, after = (np.searchsorted(self._true_keys, keys, side) for side in ("left", "right"))
        return [self._true[a:b] for a, b in zip(first, after, strict=True)]

    def _keys(self, facts: Integers) -> Integers:
        keys: Integers = facts[:, HEAD].astype(np.int64) * self._relations + facts[:, RELATION]
        return keys


def held_out_facts(corpus: Corpus, limit: int | None = None, seed: int = 0) -> Integers:
    """The numbers of the held-out facts to query, ascending. Their tail is known, training does not state
    them, and each occurs once.

    With a `limit`, a fair sample by the hash of the names and the seed, independent of the numbering.
    """
    facts = corpus.facts.astype(np.int64)
    apart = corpus.held_out[facts[:, PASSAGE]]
    shape = (len(corpus.relations), len(corpus.entities), len(corpus.entities))
    keys = np.ravel_multi_index((facts[:, RELATION], facts[:, HEAD], facts[:, TAIL]), shape)
    fit = apart & corpus.entity_known[facts[:, TAIL]] & ~np.isin(keys, keys[~apart])
    numbers = np.flatnonzero(fit)
    numbers = np.sort(numbers[np.unique(keys[numbers], return_index=True)[1]])
    if limit is None or len(numbers) <= limit:
        return numbers

    def place(number: int) -> bytes:
        _, _, _, relation, head, tail = facts[number]
        names = corpus.relations[relation], corpus.entities[head], corpus.entities[tail]
        return hashlib.sha256("\0".join([str(seed), *names]).encode()).digest()

    return np.array(sorted(sorted(numbers.tolist(), key=place)[:limit]), dtype=np.int64)


def known_heads(corpus: Corpus, facts: Integers) -> NDArray[np.bool_]:
    """Which of the facts (given by number) have a head that occurs in training."""
    known: NDArray[np.bool_] = corpus.entity_known[corpus.facts[facts, HEAD]]
    return known


@torch.no_grad()
def rank(corpus: Corpus, facts: Integers, scores: Scores, stop: Stop = never) -> Ranking:
    """Ranks the tails of the facts (given by number) by scores, computed in blocks. Raises `Stopped`."""
    candidates = Candidates(corpus)
    rows = corpus.facts[facts].astype(np.int64)
    found, predicted = np.empty(len(facts)), np.empty(len(facts), dtype=np.int64)
    for block in _blocks(len(facts), QUERIES, stop):
        scored = scores(block).cpu()  # blocks differ in shape, and torch_xla would compile for each
        truth = torch.from_numpy(candidates.columns(rows[block, TAIL]))
        found[block] = ranks(scored, truth, candidates.true(rows[block]))
        best = scored.masked_fill(scored.isnan(), -torch.inf).argmax(1)
        predicted[block] = candidates.entities[best.numpy()]
    return Ranking(found, predicted)


def evaluate(
    encoder: Encoder, corpus: Corpus, entities: Tensor, *, limit: int | None = None, stop: Stop = never
) -> dict[str, float]:
    """The metrics of `evaluate_encoder` on all held-out facts and passages. With a `limit`, on a fair sample
    of that many facts and on some rows of passages, which are the same every time."""
    facts, rows = held_out_facts(corpus, limit), None if limit is None else SAMPLED_ROWS
    return evaluate_encoder(encoder, corpus, entities, facts, rows=rows, stop=stop).metrics()


def evaluate_encoder(
    encoder: Encoder,
    corpus: Corpus,
    entities: Tensor,
    facts: Integers,
    *,
    length: int | None = None,
    rows: int | None = None,
    stop: Stop = never,
) -> Evaluation:
    """Queries the encoder for the tails of the facts (given by number) and for masked words
    of held-out passages.

    `entities` (E, T) are those of the corpus on the encoder's device. `length` is the number of columns of a
    row; if None, what the longest passage needs. `rows` is about how many rows of masked words are read; if
    None, all. The encoder's mode is restored at the end. `stop` is asked before each block, and then
    `Stopped` is raised. Raises ValueError if there is no fact to query.
    """
    if not len(facts):
        raise ValueError("no fact of a held-out module is new and has a known tail")
    length = length or int(np.diff(corpus.starts).max()) + LEAVES
    mode = encoder.training
    encoder.train(False)
    try:
        with torch.no_grad():
            tails = _tails(encoder, corpus, entities, stop)
            alone = _alone(encoder, corpus, entities, facts, stop)
            prior = _prior(corpus).to(entities.device)
            graph = rank(corpus, facts, _products(alone, tails, prior), stop)
            reading = _reading(encoder, corpus, entities, facts, length, stop)
            text = rank(corpus, facts, _products(reading, tails, prior), stop)
            masked = plan.held_out_words(corpus, length, LEAVES, size=ROWS)
            apart = 1 if rows is None else max(1, len(masked) * ROWS // rows)
            words = _word_loss(encoder, masked[::apart], entities, stop)
    finally:
        encoder.train(mode)
    return Evaluation(graph, text, words, ontology_violations(corpus, facts, graph.predicted))


def _products(queries: Tensor, tails: Tensor, prior: Tensor) -> Scores:
    def scores(block: Integers) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):  # in 16 bits many scores would be equal
            return queries[torch.from_numpy(block).to(queries.device)] @ tails.T + prior

    return scores


def _prior(corpus: Corpus) -> Tensor:
    """(known entities,): ln of the chance that training samples an entity as a candidate.

    A softmax over sampled candidates learns the chance of a tail divided by its chance of being sampled. This
    factor corrects for that (logQ: arXiv 2507.09331). About half of the candidates are tails of facts, and
    the rest are drawn uniformly.
    """
    facts = corpus.facts[~corpus.held_out[corpus.facts[:, PASSAGE]]]
    known = np.flatnonzero(corpus.entity_known)
    times = np.bincount(facts[:, TAIL], minlength=len(corpus.entities))[known]
    share = 0.5 * times / max(1, times.sum()) + 0.5 / len(known)
    return torch.from_numpy(np.log(share)).float()


def _tails(encoder: Encoder, corpus: Corpus, entities: Tensor, stop: Stop) -> Tensor:
    """(known entities, width), float32."""
    ids = torch.from_numpy(np.flatnonzero(corpus.entity_known)).to(entities.device)
    blocks = _blocks(len(ids), ENTITIES, stop)
    return torch.cat([encoder.entity(ids[torch.from_numpy(b)], entities).float() for b in blocks])


def _alone(encoder: Encoder, corpus: Corpus, entities: Tensor, facts: Integers, stop: Stop) -> Tensor:
    """(n, width) from heads and relations only."""
    asked = torch.from_numpy(corpus.facts[facts].astype(np.int64)).to(entities.device)
    found = []
    for block in _blocks(len(facts), QUERIES, stop):
        heads, relations = asked[block, HEAD], asked[block, RELATION]
        found.append(encoder.query(heads, relations, entities).float())
    return torch.cat(found)


def _reading(
    encoder: Encoder, corpus: Corpus, entities: Tensor, facts: Integers, length: int, stop: Stop
) -> Tensor:
    """(n, width): hidden states at the masked leaves. A fact that no row queries stays NaN and ranks last."""
    place = np.full(len(corpus.facts), -1, dtype=np.int64)
    place[facts] = np.arange(len(facts))
    found = torch.empty(0)
    for batch in plan.queries(corpus, facts, length, LEAVES, size=ROWS):
        heed(stop)
        hidden = encoder(_tensors(batch, entities.device), entities)
        if not len(found):
            found = hidden.new_full((len(facts), hidden.shape[-1]), math.nan, dtype=torch.float32)
        numbers = batch["query_fact"]
        asked = torch.from_numpy(numbers >= 0).to(hidden.device)
        leaves = hidden[:, -numbers.shape[1] :]
        found[torch.from_numpy(place[numbers[numbers >= 0]]).to(hidden.device)] = leaves[asked].float()
    return found


def _word_loss(
    encoder: Encoder, batches: Iterable[Mapping[str, NDArray[np.generic]]], entities: Tensor, stop: Stop
) -> float:
    """Nats per masked token; NaN if no token is masked."""
    loss, count = 0.0, 0
    for arrays in batches:
        heed(stop)
        batch = _tensors(arrays, entities.device)
        hidden = encoder(batch, entities)
        places, targets = batch["word_places"], batch["word_targets"]
        asked = targets >= 0
        at = hidden.gather(1, places.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))[asked]
        loss += functional.cross_entropy(encoder.guess(at).float(), targets[asked], reduction="sum").item()
        count += int(asked.sum())
    return loss / count if count else math.nan


def ontology_violations(corpus: Corpus, facts: Integers, predicted: Integers) -> float:
    """Percentage of predicted tails (entity ids) that break the ontology, given what training states.

    A prediction breaks it in one of three ways: it has none of the kinds that its relation takes as tails, it
    reverses a known fact of an antisymmetric relation, or it closes a cycle in an acyclic one. An entity of
    unknown kind breaks nothing by its kind. Since entities are compared by surface, even some true facts
    break it: compare the figure with theirs.
    """
    if not len(facts):
        return math.nan
    asked = corpus.facts[facts].astype(np.int64)
    broken = np.zeros(len(facts), dtype=bool)
    for number, name in enumerate(corpus.relations):
        rule = ONTOLOGY.get(name)
        if rule is None:
            continue
        here = np.flatnonzero(asked[:, RELATION] == number)
        heads, tails = asked[here, HEAD], predicted[here]
        kinds = corpus.entity_kinds[tails]
        broken[here] |= (kinds != 0) & (kinds & mask(rule.tail) == 0)
        if rule.antisymmetric or rule.acyclic:
            into = _stated(corpus, number)
            against = [
                (rule.antisymmetric and tail != head and tail in into.get(head, ()))
                or (rule.acyclic and tail in above)
                for head, tail, above in zip(heads, tails, _ancestors(heads, into), strict=True)
            ]
            broken[here] |= np.array(against, dtype=bool)
    return 100.0 * float(broken.mean())


def _stated(corpus: Corpus, relation: int) -> dict[int, set[int]]:
    """Tail → heads, for a relation's facts in training."""
    facts = corpus.facts[(corpus.facts[:, RELATION] == relation) & ~corpus.held_out[corpus.facts[:, PASSAGE]]]
    into: dict[int, set[int]] = {}
    for head, tail in facts[:, [HEAD, TAIL]].tolist():
        into.setdefault(tail, set()).add(head)
    return into


def _ancestors(heads: Integers, into: Mapping[int, set[int]]) -> Iterator[set[int]]:
    """For each head, all entities from which a chain of facts leads to it, including itself."""
    known: dict[int, set[int]] = {}
    for head in heads.tolist():
        if head not in known:
            above, ahead = {head}, [head]
            while ahead:
                new = into.get(ahead.pop(), set()) - above
                above |= new
                ahead += new
            known[head] = above
        yield known[head]


def _tensors(batch: Mapping[str, NDArray[np.generic]], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array).to(device) for name, array in batch.items()}


def _blocks(count: int, size: int, stop: Stop) -> Iterator[Integers]:
    for first in range(0, count, size):
        heed(stop)
        yield np.arange(first, min(first + size, count))
