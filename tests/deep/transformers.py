"""Small transformers for the tests: a ViT, a GPT, and an encoder with a padding mask."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, VOCABULARY, PADDING = 8, 2, 11, 0


def make_encoder(dropout: float) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 12, dropout=dropout, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class ViT(nn.Module):
    """A vision transformer on patches of 2 x 2 pixels."""

    def __init__(self, shape: tuple[int, ...], n_outputs: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.patches = nn.Linear(4 * shape[0], WIDTH)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(shape[1] * shape[2] // 4 + 1, WIDTH))
        self.encoder, self.output = make_encoder(dropout), nn.Linear(WIDTH, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        tokens = self.patches(parts / 255)
        tokens = torch.cat([self.first.expand(len(x), 1, WIDTH), tokens], dim=1) + self.positions
        y: Tensor = self.output(self.encoder(tokens)[:, 0])
        return y


class GPT(nn.Module):
    """A causal transformer that predicts the label of the last token."""

    def __init__(self, shape: tuple[int, ...], n_outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(shape[0], WIDTH))
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.mix, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, n_outputs)
        self.dropout = dropout

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions
        parts = (
            self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            parts[0], parts[1], parts[2], is_causal=True, dropout_p=dropout
        )
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        y: Tensor = self.output(x[:, -1])
        return y


class Padded(nn.Module):
    """An encoder of texts of different lengths: padding is masked."""

    def __init__(self, shape: tuple[int, ...], n_outputs: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PADDING)
        self.positions = nn.Parameter(torch.randn(shape[0], WIDTH))
        self.encoder, self.output = make_encoder(dropout), nn.Linear(WIDTH, n_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        is_padding = tokens == PADDING
        is_padding = is_padding & (torch.arange(tokens.shape[1], device=tokens.device) > 0)
        x = self.encoder(self.embed(tokens) + self.positions, src_key_padding_mask=is_padding)
        weights = (~is_padding).unsqueeze(-1).to(x.dtype)
        y: Tensor = self.output((x * weights).sum(dim=1) / weights.sum(dim=1))
        return y


class Attention(nn.Module):
    """`nn.MultiheadAttention` alone, on rows of shape (steps, width)."""

    def __init__(self, _: tuple[int, ...], n_outputs: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=dropout, batch_first=True)
        self.output = nn.Linear(WIDTH, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.output(self.attention(x, x, x, need_weights=False)[0].mean(dim=1))
        return y


def vit(shape: Any, n_outputs: int) -> nn.Module:
    return ViT(shape, n_outputs)


def gpt(shape: Any, n_outputs: int) -> nn.Module:
    return GPT(shape, n_outputs)


def gpt_with_dropout(shape: Any, n_outputs: int) -> nn.Module:
    return GPT(shape, n_outputs, dropout=0.2)


def padded(shape: Any, n_outputs: int) -> nn.Module:
    return Padded(shape, n_outputs)


def attention(shape: Any, n_outputs: int) -> nn.Module:
    return Attention(shape, n_outputs)


NETS: dict[str, Callable[..., nn.Module]] = {
    "vit": vit,
    "gpt": gpt,
    "gpt with dropout": gpt_with_dropout,
    "padded": padded,
    "attention": attention,
}
