"""The state of every generator of random numbers: seeded by rank, saved with a checkpoint, set again from it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed(base: int, rank: int, step: int) -> None:
    """Seed all generators: another value for each rank, and for each step that a run goes on from."""
    value = int(np.random.SeedSequence([base, rank, step]).generate_state(1)[0])
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)  # CUDA's too


def capture(device: torch.device) -> dict[str, Any]:
    """Return the state, in types that can be loaded without running code."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    version, internal, gauss = random.getstate()
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Set the state that `capture` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
