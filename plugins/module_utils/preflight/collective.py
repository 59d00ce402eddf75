"""What a test of collective operations shows. Pure functions, on the controller."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis import rules
from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis.events import Line
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.findings import Finding

# Slower than this share of what is usual is worth a word; noise is less.
SLOW = 0.5


def host_of(rank: int, hosts: Sequence[str], processes: Sequence[int]) -> str:
    """Return the host of a rank."""
    for host, count in zip(hosts, processes, strict=True):
        if rank < count:
            return host
        rank -= count
    raise ValueError(rank)


def problems(
    ranks: Mapping[int, Mapping[str, Any]], hosts: Sequence[str], processes: Sequence[int]
) -> Iterator[Finding]:
    """Yield a finding for each host whose ranks did not do their part; those that waited for others only if all did."""
    known = rules.load()
    why = "training exchanges gradients in the same way"
    failed: dict[str, tuple[str, bool]] = {}
    for rank in range(sum(processes)):
        host = host_of(rank, hosts, processes)
        found = ranks.get(rank, {"problem": "no answer"})
        if found.get("wrong"):
            what = f"rank {rank} on {host} got wrong sums in an all_reduce of {found['wrong'][0]} bytes"
            yield Finding(
                "collective", (host,), "wrong", what, "the hardware or the network damages data", f"leave {host} out"
            )
        if "problem" in found:
            match = rules.match(Line(host, "worker", found["problem"], 0, rank=rank), known)
            waited = match is not None and match.rule.strength == "consequence"
            if host not in failed or (failed[host][1] and not waited):
                failed[host] = (found["problem"], waited)
    causes = {host: said for host, (said, waited) in failed.items() if not waited} or {
        host: said for host, (said, _) in failed.items()
    }
    for host, said in causes.items():
        do = "run preflight.yml without deep first; then look at the message"
        yield Finding("collective", (host,), "failed", f"{host} did not take part in an all_reduce: {said}", why, do)


def slow(
    result: Mapping[str, Any], earlier: Mapping[str, Any] | None, hosts: Sequence[str], processes: Sequence[int]
) -> Iterator[Finding]:
    """Yield a finding where it is much slower than before, or a pair than the others."""
    now = result["sizes"][-1]["bus_bytes_per_s"]
    before = earlier["sizes"][-1]["bus_bytes_per_s"] if earlier else 0.0
    why = "every step of a training waits for it"
    if earlier and now < SLOW * before:
        day = time.strftime("%Y-%m-%d", time.gmtime(earlier["time"]))
        yield Finding(
            "collective", tuple(hosts), "slower", f"all_reduce runs at {now / before:.0%} of what it did on {day}", why,
            "-e pairs=true names the pair that is slow", "warning",
        )  # fmt: skip
    pairs = {name: found["bus_bytes_per_s"] for name, found in result["pairs"].items()}
    usual = statistics.median(pairs.values()) if len(pairs) > 2 else 0.0
    for name, rate in pairs.items():
        if rate < SLOW * usual:
            ends = tuple(host_of(int(rank), hosts, processes) for rank in name.split("-"))
            yield Finding(
                "collective", ends, "slow",
                f"{ends[0]} and {ends[1]} exchange at {rate / usual:.0%} of what other pairs do", why,
                "compare the link of both with the others': speed, errors (`ethtool -S`), cable, switch", "warning",
            )  # fmt: skip


def lines(
    result: Mapping[str, Any], earlier: Mapping[str, Any] | None, hosts: Sequence[str], processes: Sequence[int]
) -> list[str]:
    """Return what was measured, as people read it."""
    small, *_, large = result["sizes"]
    shown = [
        f"all_reduce over {sum(processes)} ranks of {len(hosts)} hosts ({result['backend']}): sums right; "
        f"{large['bytes'] / 1e6:.1f} MB in {large['seconds'] * 1e3:.1f} ms ({large['bus_bytes_per_s'] / 1e9:.2f} GB/s "
        f"a link), {small['bytes'] / 1e3:.1f} kB in {small['seconds'] * 1e3:.2f} ms"
    ]
    if earlier:
        day = time.strftime("%Y-%m-%d %H:%M", time.gmtime(earlier["time"]))
        shown.append(
            f"  {large['bus_bytes_per_s'] / earlier['sizes'][-1]['bus_bytes_per_s']:.2f} times as fast as on {day}"
        )
    for name, found in result["pairs"].items():
        ends = " and ".join(host_of(int(rank), hosts, processes) for rank in name.split("-"))
        shown.append(f"  {ends}: {found['bus_bytes_per_s'] / 1e9:.2f} GB/s")
    return shown
