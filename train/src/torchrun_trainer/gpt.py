"""A GPT."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own name for it)
from torch import nn

from torchrun_trainer.config import Config


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return PyTorch's causal attention for tensors of shape (samples, heads, positions, channels)."""
    if query.device.type == "cpu" and query.dtype == torch.bfloat16:
        # PyTorch's backward pass of attention takes three times as long in bfloat16 as in float32 on a CPU; the
        # matrix products around it keep bfloat16.
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(query.float(), key.float(), value.float(), is_causal=True)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.query_key_value = nn.Linear(config.width, 3 * config.width, bias=False)
        self.attention_out = nn.Linear(config.width, config.width, bias=False)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp_in = nn.Linear(config.width, 4 * config.width, bias=False)
        self.mlp_out = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """Map the residual stream, shape (samples, positions, width), to one of the same shape."""
        samples, positions, width = stream.shape
        projected = self.query_key_value(self.attention_norm(stream))
        query, key, value = projected.view(samples, positions, 3, self.heads, width // self.heads).permute(
            2, 0, 3, 1, 4
        )
        attended = causal_attention(query, key, value)
        stream = stream + self.attention_out(attended.transpose(1, 2).reshape(samples, positions, width))
        hidden = F.gelu(self.mlp_in(self.mlp_norm(stream)), approximate="tanh")
        return stream + self.mlp_out(hidden)


class GPT(nn.Module):
    """Predicts each next token from those before it."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.position = nn.Embedding(config.block_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, vocab_size, bias=False)
        self.head.weight = self.embedding.weight  # tied: fewer parameters, and better on little data
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for name, parameter in self.named_parameters():
            # Two sums into the stream a block: scaled so that its variance does not grow with depth.
            if name.endswith("_out.weight"):
                nn.init.normal_(parameter, std=0.02 / (2 * config.layers) ** 0.5)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample, shape (samples,), the mean over its positions in nats.

        Inputs and targets are tokens, int64 of shape (samples, positions).
        """
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        stream = self.embedding(inputs) + self.position(positions)
        for block in self.blocks:
            stream = block(stream)
        logits = self.head(self.norm(stream)).float()
        losses = F.cross_entropy(logits.view(-1, self.vocab_size), targets.reshape(-1), reduction="none")
        return losses.view(targets.shape).mean(dim=1)
