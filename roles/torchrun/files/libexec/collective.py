"""One rank of a test of collective operations: are sums right, and how fast are they, over all ranks and between pairs.

Started by the module preflight_collective with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Prints one
JSON object: `sizes`, a list of `bytes`, `seconds` (median of an all_reduce) and `bus_bytes_per_s` (bytes that every
link carries, 2 (n - 1) / n of the size, a second); `wrong`, the sizes whose sums were not right on this rank; and
`pairs`, for each pair of first ranks of nodes the same of one size.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from datetime import timedelta
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist

SECONDS = timedelta(seconds=float(os.environ.get("TORCHRUN_COLLECTIVE_SECONDS", "60")))
ROUNDS = 5


def device() -> torch.device:
    """Return where this rank computes."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def measure(count: int, ranks: list[int], place: torch.device, group: Any = None) -> tuple[dict[str, float], bool]:
    """Return (bytes, seconds, bus bytes/s of an all_reduce of so many numbers over ranks; whether sums were right)."""
    mine, expected = float(dist.get_rank() + 1), float(sum(rank + 1 for rank in ranks))
    seconds, right = [], True
    for attempt in range(ROUNDS + 1):
        values = torch.full((count,), mine, device=place)
        dist.barrier(group)
        begun = time.perf_counter()
        dist.all_reduce(values, group=group)
        if place.type == "cuda":
            torch.cuda.synchronize()
        if attempt:  # the first one connects
            seconds.append(time.perf_counter() - begun)
        right = right and bool((values == expected).all())
    took, size = statistics.median(seconds), count * 4
    share = 2 * (len(ranks) - 1) / len(ranks)
    return {"bytes": size, "seconds": took, "bus_bytes_per_s": size * share / took}, right


def main() -> None:
    """Measure, and print what came of it."""
    place = device()
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=SECONDS)
    everyone = list(range(dist.get_world_size()))
    sizes, wrong = [], []
    for count in (1 << 10, 1 << 18, 1 << (24 if place.type == "cuda" else 22)):
        found, right = measure(count, everyone, place)
        sizes.append(found)
        wrong += [] if right else [found["bytes"]]
    pairs = {}
    firsts = json.loads(sys.argv[1]) if len(sys.argv) > 1 else []
    for pair in combinations(firsts, 2):
        group = dist.new_group(list(pair))
        if dist.get_rank() in pair:
            pairs[f"{pair[0]}-{pair[1]}"] = measure(1 << 20, list(pair), place, group)[0]
        dist.barrier()
    print(json.dumps({"sizes": sizes, "wrong": wrong, "pairs": pairs, "backend": dist.get_backend()}), flush=True)  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
