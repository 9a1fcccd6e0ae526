"""Attention of tokens to a memory or to each other (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.nets.mlp import Linear, Mlp

ATTENTION_HEADS = 2
BRANCH_GAIN = 0.5  # of a residual branch's last layer: at the start a block changes little


class Attention(nn.Module):
    """Multi-head attention of tokens to a memory."""

    def __init__(self, channels: int, generator: torch.Generator, heads: int = ATTENTION_HEADS) -> None:
        super().__init__()
        self._heads = heads
        self.ask = Linear(channels, channels, 1.0, generator)  # queries; named as saved weights are
        self.answer = Linear(channels, 2 * channels, 1.0, generator)  # keys and values
        self.out = Linear(channels, channels, BRANCH_GAIN, generator)

    def forward(self, tokens: Tensor, memory: Tensor, bias: Tensor | None = None) -> Tensor:
        """[rows, tokens, channels]; `bias` [rows, memory] is added to what each part of the memory scores."""
        keys, values = each(self.answer, memory).chunk(2, -1)
        by_head = (self._by_head(each(self.ask, tokens)), self._by_head(keys), self._by_head(values))
        found = functional.scaled_dot_product_attention(*by_head, None if bias is None else bias[:, None, None])
        return each(self.out, found.transpose(1, 2).flatten(2))

    def _by_head(self, tokens: Tensor) -> Tensor:
        return tokens.view(*tokens.shape[:2], self._heads, -1).transpose(1, 2)


class AttentionBlock(nn.Module):
    """A transformer block: attention to a memory, or among the tokens themselves, then a perceptron on each."""

    def __init__(
        self, channels: int, activation: str, generator: torch.Generator, heads: int = ATTENTION_HEADS
    ) -> None:
        super().__init__()
        self.norm, self.norm_after = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = Attention(channels, generator, heads)
        self.perceptron = Mlp((channels, 2 * channels, channels), activation, BRANCH_GAIN, generator)

    def forward(self, tokens: Tensor, memory: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """[rows, tokens, channels] -> the same; `bias` as in Attention."""
        queries = self.norm(tokens)
        tokens = tokens + self.attention(queries, queries if memory is None else memory, bias)
        return tokens + each(self.perceptron, self.norm_after(tokens))


def each(net: nn.Module, tokens: Tensor) -> Tensor:
    """What a network for rows makes of every token, [..., channels]."""
    out: Tensor = net(tokens.flatten(0, -2))
    return out.view(*tokens.shape[:-1], -1)
