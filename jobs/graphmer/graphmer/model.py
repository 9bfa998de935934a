"""The encoder of batches of masked leafy chains. Must never know losses, or where batches come from.

It has pre-norm RMSNorm, SwiGLU, tied embeddings, and no dropout, because another micro-batch or device count
must not change the mathematics. Attention fades with the distance along the leafy chain, with a slope for
each head (ALiBi, arXiv 2108.12409; GraphMERT's decay, arXiv 2510.09580). The slopes to the left and to the
right differ, because with equal slopes an encoder could not distinguish the two directions. Graph attention
fuses the leaves in on two levels: the tokens of an entity into one vector, and the leaves of an anchor into
the anchor (H-GAT of GraphMERT; GATv2's scores, arXiv 2105.14491). All shapes are static, as XLA needs them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from graphmer.config import Model
from graphmer.corpus import ENTITY_TOKENS
from graphmer.pages import HIDDEN, NO_LEAF
from graphmer.tokens import MASK, PAD

_BOTTLENECK = 32  # width of the joint correction of an entity's tokens
_LEAK = 0.2  # arXiv 1710.10903 §2.1
_FAR_SIDE = 4.0  # how much faster a head's attention fades on its far side

Batch = Mapping[str, Tensor]


class Block(nn.Module):
    """Attention and feed-forward, each after its norm."""

    def __init__(self, sizes: Model) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.attention_norm = nn.RMSNorm(width)
        self.project_in = nn.Linear(width, 3 * width, bias=False)
        self.project_out = nn.Linear(width, width, bias=False)
        self.feed_norm = nn.RMSNorm(width)
        self.feed_in = nn.Linear(width, sizes.feed, bias=False)  # gate and value: the fused width
        self.feed_out = nn.Linear(sizes.feed // 2, width, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """x (rows, length, width), bias (rows, heads, length, length) → x."""
        rows, length, width = x.shape
        parts = self.project_in(self.attention_norm(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))
        x = x + self.project_out(attended.transpose(1, 2).reshape(rows, length, width))
        gate, value = self.feed_in(self.feed_norm(x)).chunk(2, dim=-1)
        out: Tensor = x + self.feed_out(functional.silu(gate) * value)
        return out


class Encoder(nn.Module):
    """Gives the hidden states of masked rows, the embeddings of entities, and the queries to
    score against them."""

    slopes: Tensor

    def __init__(self, sizes: Model, vocabulary: int, relations: int) -> None:
        super().__init__()
        width, heads = sizes.width, sizes.heads
        self.sizes = sizes
        self.words = nn.Embedding(vocabulary, width)
        self.relations = nn.Embedding(relations + 1, width)  # 0: an entity alone
        self.spots = nn.Embedding(ENTITY_TOKENS, width)  # position of a token in its entity's name
        self.token_attention = nn.Parameter(torch.empty(heads, width // heads))
        self.leaf_attention = nn.Parameter(torch.empty(heads, width // heads))
        self.leaf_bias = nn.Embedding(relations + 1, heads)
        self.fusion = nn.Parameter(torch.full((width,), 0.1))
        self.toward_anchor = nn.Embedding(relations + 1, heads)
        self.toward_leaf = nn.Embedding(relations + 1, heads)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(width)
        self.word_bias = nn.Parameter(torch.zeros(vocabulary))
        self.truth = nn.Linear(width, 1)
        self.narrow = nn.Linear(width, _BOTTLENECK, bias=False)
        self.widen = nn.Linear(_BOTTLENECK, width, bias=False)
        self.rotations = nn.Embedding(relations + 1, width)
        self.graph_norm = nn.RMSNorm(width)
        self.graph_bias = nn.Embedding(relations + 1, 1)
        self.register_buffer("slopes", _slopes(heads), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        std = self.sizes.width**-0.5
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        for name in ("leaf_bias", "toward_anchor", "toward_leaf"):
            nn.init.zeros_(getattr(self, name).weight)
        nn.init.constant_(self.graph_bias.weight, -3.0)  # most pairs of entities are not facts
        nn.init.zeros_(self.truth.bias)
        nn.init.normal_(self.spots.weight, std=0.1 * std)
        nn.init.normal_(self.rotations.weight, std=2**-0.5)
        for attention in (self.token_attention, self.leaf_attention):
            nn.init.normal_(attention, std=(self.sizes.width / self.sizes.heads) ** -0.5)
        for block in self.blocks:
            assert isinstance(block, Block)
            for last in (block.project_out, block.feed_out):  # keeps the residual stream's variance near 1
                last.weight.data.mul_((2 * self.sizes.layers) ** -0.5)

    def forward(self, batch: Batch, entities: Tensor) -> Tensor:
        """A batch of `plan.Plan` and the entities' tokens (E, T) → hidden states (rows, length, width)."""
        leaves = self._leaves(batch, entities)
        x = self._hang(self.words(batch["tokens"]), leaves, batch)
        bias = self._bias(batch, _working_type(x))
        for block in self.blocks:
            if self.sizes.checkpoint_activations and torch.is_grad_enabled():
                x = checkpoint(block, x, bias, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, bias)
        hidden: Tensor = self.norm(x)
        return hidden

    def guess(self, hidden: Tensor) -> Tensor:
        """(…, width) → logits over the vocabulary (…, V)."""
        return functional.linear(hidden, self.words.weight, self.word_bias)

    def entity(self, ids: Tensor, entities: Tensor) -> Tensor:
        """Entity ids of any shape → embeddings (…, width), to be scored with queries by a dot product."""
        return self._composed(entities[ids], torch.zeros_like(ids))

    def query(self, heads: Tensor, relations: Tensor, entities: Tensor) -> Tensor:
        """A query from the graph alone, without text: head and relation ids (…) → (…, width).

        score(h, r, t) = ⟨query(h, r), entity(t)⟩. The relation rotates the head like complex numbers
        (arXiv 1606.06357), so that score(h, r, t) and score(t, r, h) may differ.
        """
        one, other = self.entity(heads, entities).chunk(2, dim=-1)
        real, imaginary = self.rotations(relations + 1).chunk(2, dim=-1)
        turned = torch.cat([one * real - other * imaginary, one * imaginary + other * real], dim=-1)
        out: Tensor = self.graph_norm(turned)
        return out

    def _composed(self, tokens: Tensor, relations: Tensor) -> Tensor:
        """Tokens of entities (…, T), relation ids + 1 (…) → (…, width): attention over the tokens."""
        parts = self.words(tokens) + self.spots.weight[: tokens.shape[-1]]
        seen = functional.leaky_relu(parts + self.relations(relations).unsqueeze(-2), _LEAK)
        scores = (self._by_head(seen) * self.token_attention).sum(-1)  # (…, T, heads)
        scores = scores.masked_fill((tokens == PAD).unsqueeze(-1), -1e4)
        shares = scores.softmax(dim=-2).unsqueeze(-1)
        pooled = (shares * self._by_head(parts)).sum(-3).flatten(-2)
        out: Tensor = pooled + self.widen(functional.silu(self.narrow(pooled)))
        return out

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.sizes.heads, -1)

    def _leaves(self, batch: Batch, entities: Tensor) -> Tensor:
        """(rows, leaves, width): each leaf's tail, or a mask if it is to be guessed; zero if
        there is no leaf."""
        state = batch["leaf_state"]
        relations = batch["relations"][:, -state.shape[1] :]
        tokens = entities[batch["leaf_tail"]]
        hidden = torch.full_like(tokens, PAD)
        hidden[..., 0] = MASK
        tokens = torch.where((state == HIDDEN).unsqueeze(-1), hidden, tokens)
        leaves = self._composed(tokens, relations) + self.relations(relations)
        shown: Tensor = leaves * (state != NO_LEAF).unsqueeze(-1)
        return shown

    def _hang(self, x: Tensor, leaves: Tensor, batch: Batch) -> Tensor:
        """Puts the leaves into the last columns, and adds to each anchor what its leaves say."""
        anchors, present = batch["leaf_anchor"], batch["leaf_state"] != NO_LEAF
        count = anchors.shape[1]
        held = x.gather(1, anchors.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        seen = self._by_head(functional.leaky_relu(held + leaves, _LEAK))
        scores = (seen * self.leaf_attention).sum(-1) + self.leaf_bias(batch["relations"][:, -count:])
        siblings = (anchors.unsqueeze(1) == anchors.unsqueeze(2)) & present.unsqueeze(1)  # (rows, of, among)
        among = scores.transpose(1, 2).unsqueeze(2).masked_fill(~siblings.unsqueeze(1), -1e4)
        shares = (
            (scores - among.logsumexp(-1).transpose(1, 2)).masked_fill(~present.unsqueeze(-1), -1e4).exp()
        )
        told = (shares.unsqueeze(-1) * self._by_head(leaves)).flatten(-2)
        places = functional.one_hot(anchors, x.shape[1]).to(told.dtype) * present.unsqueeze(-1)
        x = x + self.fusion * (places.transpose(1, 2) @ told)
        return torch.cat([x[:, :-count], leaves.to(x.dtype)], dim=1)

    def _bias(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        """(rows, heads, length, length), added to the attention logits: distance, passages and relations."""
        places, segments, relations = batch["places"], batch["segments"], batch["relations"]
        anchors, spans = batch["leaf_anchor"].unsqueeze(-1), batch["leaf_span"].unsqueeze(-1)
        depth = (relations > 0).to(torch.float32)
        ahead = places.unsqueeze(1) - places.unsqueeze(2)  # > 0: the key is to the right
        between = ahead.abs() + depth.unsqueeze(1) + depth.unsqueeze(2)
        slopes = self.slopes[:, :, None, None]
        bias = -between.unsqueeze(1) * torch.where(ahead.unsqueeze(1) > 0, slopes[1], slopes[0])
        apart = segments.unsqueeze(1) != segments.unsqueeze(2)
        alone = (segments == 0).unsqueeze(1) & ~torch.eye(
            segments.shape[1], dtype=torch.bool, device=bias.device
        )
        bias = bias.masked_fill((apart | alone).unsqueeze(1), -torch.inf).to(dtype)
        columns = torch.arange(places.shape[1], device=places.device)
        count = anchors.shape[1]
        present = (batch["leaf_state"] != NO_LEAF).unsqueeze(-1)
        inside = (columns >= anchors) & (columns < anchors + spans) & present
        mention = inside.unsqueeze(1)  # (rows, 1, leaves, length)
        of = relations[:, -count:]
        up = self.toward_anchor(of).transpose(1, 2).unsqueeze(-1).to(dtype) * mention
        down = self.toward_leaf(of).transpose(1, 2).unsqueeze(-1).to(dtype) * mention
        bias = bias + functional.pad(down.transpose(2, 3), (places.shape[1] - count, 0))
        return bias + functional.pad(up, (0, 0, places.shape[1] - count, 0))


def _working_type(x: Tensor) -> torch.dtype:
    """The type in which attention computes here, so that the bias is cast once and not in every block."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _slopes(heads: int) -> Tensor:
    """(2, heads): to the left and to the right. The last head sees its whole passage equally."""
    slopes = torch.pow(2.0, -torch.arange(1, heads + 1) * 8.0 / heads)
    slopes[-1] = 0.0
    right = torch.arange(heads) % 2 == 0
    factor = torch.tensor(_FAR_SIDE)
    return torch.stack(
        [torch.where(right, slopes * factor, slopes), torch.where(right, slopes, slopes * factor)]
    )
