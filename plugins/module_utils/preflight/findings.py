"""What a check finds wrong, and comparing hosts. Pure functions, on the controller.

A report of a host has `facts` (facts.of_node), `storage`, `tokens`, `listen` and `probe` (network); of a host that did
not answer it has `problem` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Cluster:
    """What was planned: `nodes` in node_rank order, each with name, alias, address and nproc_per_node."""

    nodes: Sequence[Mapping[str, Any]]
    shared_path: str
    user: str = "trainer"

    @property
    def names(self) -> list[str]:
        """The hosts, in node_rank order."""
        return [str(node["name"]) for node in self.nodes]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong: on which hosts, why it matters, and what to do. `word` stands for it in the table."""

    check: str
    hosts: tuple[str, ...]
    word: str
    what: str
    why: str
    do: str
    severity: str = "error"


def odd_ones(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hosts whose value is not that of the most others; on a tie, of the first one."""
    if not values:
        return {}
    counted = [repr(value) for value in values.values()]
    usual = max(counted, key=counted.count)  # max takes the first of equals
    return {host: value for host, value in values.items() if repr(value) != usual}


def differing(
    check: str, word: str, values: Mapping[str, Any], *, label: str, why: str, do: str, severity: str = "error"
) -> Iterator[Finding]:
    """Yield a finding where hosts have another value than most."""
    odd = odd_ones(values)
    if odd:
        told = ", ".join(f"{host} has {plain(value)}" for host, value in odd.items())
        usual = next(value for host, value in values.items() if host not in odd)
        yield Finding(check, tuple(odd), word, f"{label}: {told}, the others {plain(usual)}", why, do, severity)


def plain(value: Any) -> str:
    """Return a value as people read it."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value not in ("", None) else "none"


def facts_of(reports: Mapping[str, Report]) -> dict[str, Any]:
    """Return the facts of the hosts that answered."""
    return {host: report["facts"] for host, report in reports.items() if "facts" in report}


def tries_of(reports: Mapping[str, Report]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (host, peer, what came of trying it)."""
    for host, report in reports.items():
        for peer, tried in (report.get("probe") or {}).items():
            yield host, peer, tried
