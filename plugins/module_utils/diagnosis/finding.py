"""The first cause of a failure, from lines of all hosts. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis.events import Line, errors_in
from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis.rules import Match, Rule, match
from ansible_collections.torchrun.cluster.plugins.module_utils.job_views import cut

LAST_LINES = 8
TIMELINE = 8
WIDEST = 240


@dataclass(frozen=True)
class Finding:
    """Why a job failed.

    `kind`: known (a rule names the cause), waiting (all that is known is that ranks waited for others), unknown (errors
    that no rule knows), nothing (no error at all).
    """

    kind: str
    cause: str
    cure: str = ""
    host: str = ""
    rank: int | None = None
    rule: str = ""
    reference: str = ""
    evidence: Line | None = None
    timeline: list[Match] = field(default_factory=list)
    last_lines: list[str] = field(default_factory=list)


def find(lines: Sequence[Line], rules: Sequence[Rule], ranks: Mapping[int, str] | None = None) -> Finding:
    """Return why a job failed. `lines` are in order of time; `ranks` has the host of each rank, where that is known.

    The first line in time that a rule calls a cause; else the first that it calls suspect. What a rule calls a
    consequence is never the cause: where there is nothing else, those are named that did not wait.
    """
    ranks = ranks or {}
    matches = [found for line in lines if (found := match(line, rules))]
    for strength in ("cause", "suspect"):
        first = next((found for found in matches if found.rule.strength == strength), None)
        if first:
            return Finding(
                "known",
                first.cause,
                first.cure,
                first.line.host,
                first.line.rank,
                first.rule.name,
                first.rule.reference,
                first.line,
                timeline(matches, first),
            )
    if matches:
        return _waiting(lines, matches, ranks)
    error = next(errors_in(lines), None)
    if error is None:
        hosts = len({line.host for line in lines})
        return Finding("nothing", f"no line of {len(lines)}, of {hosts} hosts, speaks of an error")
    return Finding(
        "unknown",
        "no rule knows this failure; below are the first line that speaks of an error, and the last ones of that log",
        host=error.host,
        rank=error.rank,
        evidence=error,
        last_lines=[line.text for line in lines if (line.host, line.name) == (error.host, error.name)][-LAST_LINES:],
    )


def _waiting(lines: Sequence[Line], matches: Sequence[Match], ranks: Mapping[int, str]) -> Finding:
    """Name the ranks, or hosts, that waited for nobody: the reason is with them."""
    waited = {found.line.rank for found in matches if found.line.rank is not None}
    known = {**{line.rank: line.host for line in lines if line.rank is not None}, **ranks}
    silent = sorted(set(known) - waited) if waited else []
    hosts = {found.line.host for found in matches}
    first = matches[0]
    if silent:
        told = f"{_ranks(silent)} on {', '.join(sorted({known[rank] for rank in silent}))}"
        cause = f"{_ranks(sorted(waited))} waited for {told}, of which no log says why it did not come"
        host, rank = known[silent[0]], silent[0]
    else:
        quiet = sorted({line.host for line in lines} - hosts)
        host, rank = (quiet or [first.line.host])[0], None
        told = ", ".join(quiet)
        cause = f"hosts waited for {told}, of which no log says why" if quiet else f"{first.cause}, and no log says why"
    return Finding(
        "waiting",
        cause,
        f"look at the log of {told or 'each rank'}, and at its stack if it still stands (`py-spy dump`); a branch that "
        "only some ranks take around a collective operation is the usual reason",
        host,
        rank,
        first.rule.name,
        first.rule.reference,
        first.line,
        timeline(matches, first),
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def timeline(matches: Sequence[Match], first: Match) -> list[Match]:
    """Return what followed the first cause elsewhere: the first line of each rank, and of each host's own logs."""
    seen = {(first.line.host, first.line.rank), (first.line.host, None)}
    found = []
    for other in matches[matches.index(first) + 1 :]:
        key = (other.line.host, other.line.rank)
        if key not in seen:
            seen |= {key, (other.line.host, None)}
            found.append(other)
    return found[:TIMELINE]


def when(time: float | None) -> str:
    """Return a time of day for people."""
    return "--:--:--" if time is None else datetime.fromtimestamp(time, timezone.utc).strftime("%H:%M:%S")


def where(line: Line) -> str:
    """Return host, rank and kind of a line."""
    rank = "" if line.rank is None else f", rank {line.rank}"
    return f"{line.host}{rank} ({line.kind})"


def shortened(text: str) -> str:
    """Return a line that fits a terminal."""
    return cut(" ".join(text.split()), WIDEST)


def display(finding: Finding) -> list[str]:
    """Return the finding as people read it. Times are UTC."""
    if finding.kind == "nothing":
        return [f"No failure found: {finding.cause}."]
    rank = "" if finding.rank is None else f", rank {finding.rank}"
    shown = [f"  cause     {finding.host}{rank}: {finding.cause}"]
    if finding.evidence:
        shown.append(
            f"  evidence  {when(finding.evidence.time)} {where(finding.evidence)}: {shortened(finding.evidence.text)}"
        )
    shown += [f"            {shortened(text)}" for text in finding.last_lines]
    if finding.cure:
        shown.append(f"  cure      {finding.cure}")
        shown.append(f"  see       {finding.reference}")
    for number, later in enumerate(finding.timeline):
        title = "then" if number == 0 else ""
        shown.append(f"  {title:8}  {when(later.line.time)} {where(later.line)}: {later.cause}")
    return shown


def as_dict(finding: Finding) -> dict[str, Any]:
    """Return the finding as JSON can hold it; times are unix seconds."""
    return {
        **{name: getattr(finding, name) for name in ("kind", "cause", "cure", "host", "rank", "rule", "reference")},
        "evidence": finding.evidence and {"time": finding.evidence.time, "text": finding.evidence.text},
        "last_lines": finding.last_lines,
        "timeline": [
            {"time": later.line.time, "host": later.line.host, "rank": later.line.rank, "rule": later.rule.name}
            for later in finding.timeline
        ],
    }
