"""What the hardware has: number types, peak speed, and an allocator that fits training."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import torch

# Dense bfloat16 (float16 before Ampere) peak by the name of a GPU, in TFLOP/s, from NVIDIA's data sheets; the first
# name that is contained counts.
PEAK_TFLOPS = (
    ("B300", 2250.0),
    ("B200", 2250.0),
    ("H200", 989.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("A40", 150.0),
    ("A30", 165.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("RTX 6000 Ada", 364.0),
    ("RTX A6000", 155.0),
    ("RTX 5090", 210.0),
    ("RTX 4090", 165.0),
    ("RTX 3090", 71.0),
    ("V100", 125.0),
    ("T4", 65.0),
)

# glibc's mallopt parameters, from malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
GIB = 1 << 30


def precisions(device: torch.device) -> list[str]:
    """Return the types of the forward pass that this device is fast with, the best first."""
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        return ["bfloat16", "float16", "float32"] if major >= 8 else ["float16", "float32"]  # since Ampere
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return ["bfloat16", "float32"] if fast else ["float32"]


def common_precision(wanted: str, by_rank: Sequence[Sequence[str]]) -> str:
    """Return the type of the forward pass: what is wanted, or the best that all ranks have."""
    if wanted != "auto":
        return wanted
    return next((name for name in by_rank[0] if all(name in has for has in by_rank)), "float32")


def peak_flops(device: torch.device) -> float | None:
    """Return the peak of a GPU in FLOP/s, or None where it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((tflops * 1e12 for known, tflops in PEAK_TFLOPS if known in name), None)


def keep_freed_memory() -> None:
    """Let glibc keep what tensors on CPU free, instead of giving it back and faulting it in again in each step."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # another C library has none
        mallopt(M_MMAP_THRESHOLD, GIB)
        mallopt(M_TRIM_THRESHOLD, GIB)
        mallopt(M_TOP_PAD, 64 << 20)


def memory(device: torch.device) -> int:
    """Return the most bytes this process has used: of the GPU, or of main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # noqa: PLC0415 (not everywhere)

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def flops_of(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> float:
    """Return the FLOPs of forward and backward on a batch, divided by its samples."""
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 (slow to import)

    with FlopCounterMode(display=False) as counter:
        model(*batch).sum().backward()
    model.zero_grad(set_to_none=True)
    return counter.get_total_flops() / len(batch[0])
