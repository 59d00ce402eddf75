"""The GPT's own parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own name for it)
from torchrun_trainer.gpt import causal_attention


def test_attention_on_a_cpu_is_computed_in_float32_also_under_autocast() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 4, 16, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        found = causal_attention(*inputs)
    expected = F.scaled_dot_product_attention(*(tensor.detach().float() for tensor in inputs), is_causal=True)
    assert torch.equal(found, expected)
    found.sum().backward()
    assert all(tensor.grad is not None and tensor.grad.dtype == torch.bfloat16 for tensor in inputs)
