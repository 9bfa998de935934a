"""The encoder: what a batch of masked chains becomes. Must never know where batches come from, nor losses.

Pre-norm RMSNorm, SwiGLU, tied embeddings. Attention fades with the distance in the leafy chain, with a
slope per head (ALiBi, arXiv 2108.12409; GraphMERT's decay, arXiv 2510.09580).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphmer.chains import PAD
from graphmer.graph import RELATIONS


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width)
        self.project_in = nn.Linear(width, 3 * width, bias=False)
        self.project_out = nn.Linear(width, width, bias=False)
        self.feed_norm = nn.RMSNorm(width)
        self.feed_in = nn.Linear(width, 4 * width, bias=False)  # gate and value: the fused width
        self.feed_out = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.project_in(self.attention_norm(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))
        x = x + self.project_out(attended.transpose(1, 2).reshape(rows, length, width))
        gate, value = self.feed_in(self.feed_norm(x)).chunk(2, dim=-1)
        out: Tensor = x + self.feed_out(functional.silu(gate) * value)
        return out


class Encoder(nn.Module):
    """Masked chains in, hidden states out; `guess` turns hidden states into logits over the words."""

    slopes: Tensor

    def __init__(self, vocabulary: int, roots: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(roots, width)
        self.relations = nn.Embedding(len(RELATIONS) + 1, width)  # 0: a root
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        half = torch.pow(2.0, -torch.arange(1, heads) * 8.0 / heads)  # the last head sees all alike
        self.register_buffer("slopes", torch.cat([half, torch.zeros(1)]), persistent=False)
        for embedding in (self.words, self.places, self.relations):
            nn.init.normal_(embedding.weight, std=width**-0.5)

    def forward(self, words: Tensor, places: Tensor, relations: Tensor) -> Tensor:
        """Each (rows, length) → (rows, length, width)."""
        x = self.words(words) + self.places(places) + self.relations(relations)
        bias = self._fading(words, places, relations)
        for block in self.blocks:
            x = block(x, bias)
        hidden: Tensor = self.norm(x)
        return hidden

    def guess(self, hidden: Tensor) -> Tensor:
        """(n, width) → logits (n, vocabulary)."""
        return functional.linear(hidden, self.words.weight, self.bias)

    def _fading(self, words: Tensor, places: Tensor, relations: Tensor) -> Tensor:
        """(rows, heads, length, length), added to the attention's logits: the way along roots and leaves."""
        depth = (relations > 0).to(torch.float32)
        between = (places[:, :, None] - places[:, None, :]).abs() + depth[:, :, None] + depth[:, None, :]
        absent = (words == PAD)[:, None, None, :]
        bias = -self.slopes[None, :, None, None] * between[:, None]
        return bias.masked_fill(absent, -torch.inf)
