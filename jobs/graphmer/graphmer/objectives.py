"""The training objectives: losses as sums, and the counts of the whole global batch that divide them.

A loss is a sum over a micro-batch divided by a count over the global batch, so that the division into
micro-batches or devices does not change the mathematics. Terms that couple samples stay inside groups of
consecutive rows, which are never split between micro-batches. Must never know the loop or devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from graphmer.config import Objectives
from graphmer.model import Batch, Encoder
from graphmer.ontology import ONTOLOGY
from graphmer.pages import FALSE, IGNORED, NO_LEAF, TRUE

_POWERS = 8  # powers of the adjacency matrix: finds cycles up to this length


@dataclass(frozen=True)
class Constraints:
    """By relation id: which relations may not hold both ways, and which may not form a cycle."""

    antisymmetric: Tensor  # (relations,) bool
    acyclic: tuple[int, ...]

    @classmethod
    def of(cls, relations: tuple[str, ...]) -> Constraints:
        rules = [ONTOLOGY.get(relation) for relation in relations]
        antisymmetric = torch.tensor([rule is not None and rule.antisymmetric for rule in rules])
        return cls(
            antisymmetric, tuple(i for i, rule in enumerate(rules) if rule is not None and rule.acyclic)
        )


class Loss:
    """The weighted objectives over one corpus' entities and relations."""

    def __init__(self, weights: Objectives, entities: Tensor, constraints: Constraints) -> None:
        """`entities` (E, T) are the tokens of every entity's name, on the encoder's device."""
        self._aims = weights
        self._entities = entities
        self._constraints = constraints
        self.weights = {
            "words": 1.0, "nodes": 1.0, "graph": 1.0, "truth": weights.truth,
            "antisymmetry": weights.antisymmetry, "acyclicity": weights.acyclicity,
            "contrastive": weights.contrastive,
        }  # fmt: skip

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The divisor of each sum: a count over the whole global batch, at least 1."""
        queries = batch["query_valid"].sum()
        shown = (batch["leaf_state"] == TRUE).sum()
        found = {
            "words": (batch["word_targets"] != IGNORED).sum(),
            "nodes": queries,
            "graph": queries + shown,
            "truth": 2 * _judged(batch).sum(),
            "antisymmetry": self._one_way(batch).sum(),
            "acyclicity": (batch["edges"][:, :, 0] >= 0).any(dim=1).sum(),
            "contrastive": _mentions(batch).sum(),
        }
        return {name: count.clamp(min=1) for name, count in found.items()}

    def sums(self, encoder: Encoder, hidden: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The sums of a micro-batch of whole groups, from the encoder's hidden states
        (rows, length, width)."""
        leaves = hidden[:, -batch["leaf_state"].shape[1] :]
        heads, tails = batch["leaf_head"], batch["leaf_tail"]
        relations = (batch["relations"][:, -heads.shape[1] :] - 1).clamp(min=0)
        tail = encoder.entity(tails, self._entities)
        queries = encoder.query(heads, relations, self._entities)
        scores = (queries * tail).sum(-1)
        chance = scores + encoder.graph_bias(relations + 1).squeeze(-1)
        pool = self._pool(encoder, batch)
        return {
            "words": _words(encoder, hidden, batch),
            "nodes": _asked(leaves, pool, batch),
            "graph": _asked(queries, pool, batch) + _shown(queries, scores, pool, batch),
            "truth": _truth(encoder, leaves, chance, batch),
            "antisymmetry": self._antisymmetry(encoder, chance, batch, heads, relations, tails),
            "acyclicity": self._acyclicity(encoder, batch),
            "contrastive": self._contrastive(encoder, hidden, batch),
        }

    def total(self, sums: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([self.weights[name] * sums[name] / counts[name] for name in sums]).sum()

    def _pool(self, encoder: Encoder, batch: Batch) -> Tensor:
        """(groups, G·Q·C + G·N, width): the candidates that the facts of a group are scored against."""
        groups = len(batch["candidates"]) // self._aims.group
        ids = [batch[name].reshape(groups, -1) for name in ("candidates", "leaf_tail")]
        return encoder.entity(torch.cat(ids, dim=1), self._entities)

    def _one_way(self, batch: Batch) -> Tensor:
        """(rows, leaves): shown facts of antisymmetric relations."""
        state = batch["leaf_state"]
        relations = (batch["relations"][:, -state.shape[1] :] - 1).clamp(min=0)
        apart = batch["leaf_head"] != batch["leaf_tail"]  # a class and its parent may share a name
        return (state == TRUE) & apart & self._constraints.antisymmetric.to(state.device)[relations]

    def _antisymmetry(
        self, encoder: Encoder, chance: Tensor, batch: Batch, heads: Tensor, relations: Tensor, tails: Tensor
    ) -> Tensor:
        """relu(s(h, r, t) + s(t, r, h) − m), s in (0, 1): a fact must not hold both ways."""
        back = encoder.query(tails, relations, self._entities) * encoder.entity(heads, self._entities)
        reverse = back.sum(-1) + encoder.graph_bias(relations + 1).squeeze(-1)
        excess = functional.relu(chance.float().sigmoid() + reverse.float().sigmoid() - self._aims.margin)
        return (excess * self._one_way(batch)).sum()

    def _acyclicity(self, encoder: Encoder, batch: Batch) -> Tensor:
        """tr(exp(A ∘ A)) / n − 1 of each group's subgraph (NOTEARS, arXiv 1803.01422), summed over relations.

        A holds the probability of every edge between the n entities in the group's acyclic facts.
        """
        ends = batch["edges"].flatten(1)  # (groups, n)
        present = ends >= 0
        ids = ends.clamp(min=0)
        first = ~torch.tril(ids.unsqueeze(2) == ids.unsqueeze(1), diagonal=-1).logical_and(
            present.unsqueeze(1)
        ).any(-1)
        nodes = (present & first).to(torch.float32)
        inside = nodes.unsqueeze(2) * nodes.unsqueeze(1)
        tails = encoder.entity(ids, self._entities)
        sums = []
        for relation in self._constraints.acyclic:
            of = torch.full_like(ids, relation)
            scores = encoder.query(ids, of, self._entities) @ tails.transpose(1, 2)
            edges = (scores.float() + encoder.graph_bias(of + 1)).sigmoid() * inside
            sums.append((_cycles(edges) / nodes.sum(-1).clamp(min=1)).sum())
        return torch.stack(sums).sum() if sums else tails.sum() * 0.0

    def _contrastive(self, encoder: Encoder, hidden: Tensor, batch: Batch) -> Tensor:
        """InfoNCE: the hidden states of each mention against the entities that its group mentions."""
        chosen = _mentions(batch)
        group, count = self._aims.group, chosen.shape[1]
        anchors, spans = batch["leaf_anchor"].unsqueeze(-1), batch["leaf_span"].unsqueeze(-1)
        columns = torch.arange(hidden.shape[1], device=hidden.device)
        inside = ((columns >= anchors) & (columns < anchors + spans)).to(hidden.dtype)
        mention = functional.normalize((inside @ hidden).float(), dim=-1).view(
            -1, group * count, hidden.shape[-1]
        )
        entity = functional.normalize(encoder.entity(batch["leaf_head"], self._entities).float(), dim=-1)
        logits = mention @ entity.view_as(mention).transpose(1, 2) / self._aims.temperature
        ids, chosen = batch["leaf_head"].view(-1, group * count), chosen.view(-1, group * count)
        own = torch.eye(ids.shape[1], dtype=torch.bool, device=ids.device)
        same = (ids.unsqueeze(1) == ids.unsqueeze(2)) & ~own
        logits = logits.masked_fill(same | ~chosen.unsqueeze(1), -1e4)
        losses = torch.logsumexp(logits, -1) - logits.diagonal(dim1=1, dim2=2)
        return (losses * chosen).sum()


def _cycles(edges: Tensor) -> Tensor:
    """(groups, n, n) float32 probabilities A → tr(exp(A ∘ A)) − n (groups,), up to cycles of _POWERS edges.

    Computed in 32 bits whatever the training's precision: fp16 overflows for six entities
    with all edges certain.
    """
    with torch.autocast(edges.device.type, enabled=False):
        square = power = edges * edges
        factorial, trace = 1.0, square.diagonal(dim1=1, dim2=2).sum(-1)
        for k in range(2, _POWERS + 1):
            power, factorial = power @ square, factorial * k
            trace = trace + power.diagonal(dim1=1, dim2=2).sum(-1) / factorial
    return trace


def _asked(queries: Tensor, pool: Tensor, batch: Batch) -> Tensor:
    """Cross entropy of hidden leaves against their pool, from their queries (rows, leaves, width)."""
    at, valid, count = batch["query_leaf"], batch["query_valid"], batch["candidates"].shape[2]
    asked = queries.gather(1, at.unsqueeze(-1).expand(-1, -1, queries.shape[-1]))
    logits = _against(asked, pool, batch["excluded"])
    own = torch.arange(logits.shape[1], device=at.device).mul(count).expand(logits.shape[:2]).unsqueeze(-1)
    losses = torch.logsumexp(logits, -1) - logits.gather(2, own).squeeze(-1)  # own: the first candidate
    return (losses * valid.view_as(losses)).sum()


def _shown(queries: Tensor, scores: Tensor, pool: Tensor, batch: Batch) -> Tensor:
    """The same for leaves that are true and shown, with their own `scores` (rows, leaves)."""
    logits = _against(queries, pool, batch["leaf_excluded"])
    own = scores.float().view(logits.shape[:2])
    losses = torch.logsumexp(torch.cat([logits, own.unsqueeze(-1)], dim=-1), -1) - own
    return (losses * (batch["leaf_state"] == TRUE).view_as(losses)).sum()


def _against(queries: Tensor, pool: Tensor, excluded: Tensor) -> Tensor:
    """(groups, queries of a group, pool) logits."""
    groups, size, width = pool.shape
    logits = queries.reshape(groups, -1, width) @ pool.transpose(1, 2)
    return logits.float().masked_fill(excluded.view(groups, -1, size), -1e4)


def _words(encoder: Encoder, hidden: Tensor, batch: Batch) -> Tensor:
    places = batch["word_places"].unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
    logits = encoder.guess(hidden.gather(1, places)).float()
    targets = batch["word_targets"].flatten()
    return functional.cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORED, reduction="sum")


def _judged(batch: Batch) -> Tensor:
    state = batch["leaf_state"]
    return (state == TRUE) | (state == FALSE)


def _truth(encoder: Encoder, leaves: Tensor, chance: Tensor, batch: Batch) -> Tensor:
    """Loss of judging whether a leaf is a fact or a corrupted one, with the text and from
    the graph's score."""
    told = (batch["leaf_state"] == TRUE).to(torch.float32)
    judged = _judged(batch)
    sums = [
        functional.binary_cross_entropy_with_logits(
            logits.float(), told, weight=judged.float(), reduction="sum"
        )
        for logits in (encoder.truth(leaves).squeeze(-1), chance)
    ]
    return sums[0] + sums[1]


def _mentions(batch: Batch) -> Tensor:
    """(rows, leaves): the first leaf of each mention of a head, which represents the mention."""
    anchors, present = batch["leaf_anchor"], (batch["leaf_state"] != NO_LEAF) & (batch["leaf_span"] > 0)
    same = (anchors.unsqueeze(1) == anchors.unsqueeze(2)) & present.unsqueeze(1)
    return present & ~torch.tril(same, diagonal=-1).any(-1)
