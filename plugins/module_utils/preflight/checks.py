"""All checks, and how their findings are shown. Pure functions, on the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.check_hosts import (
    answers,
    leftovers,
    limits,
    slots,
    storage,
)
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.check_network import (
    clock,
    mesh,
    names,
    network,
    ports,
    reach,
)
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.check_software import gpus, versions
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.findings import Cluster, Finding, Report

Check = Callable[[Cluster, Mapping[str, Report]], Iterator[Finding]]
CHECKS: dict[str, Check] = {
    "answers": answers,
    "versions": versions,
    "gpus": gpus,
    "names": names,
    "network": network,
    "ports": ports,
    "reach": reach,
    "mesh": mesh,
    "clock": clock,
    "storage": storage,
    "limits": limits,
    "leftovers": leftovers,
    "slots": slots,
}


def examine(cluster: Cluster, reports: Mapping[str, Report]) -> list[Finding]:
    """Return all that is wrong, errors first."""
    found = [finding for check in CHECKS.values() for finding in check(cluster, reports)]
    return sorted(found, key=lambda finding: finding.severity != "error")


def table(cluster: Cluster, findings: Sequence[Finding], columns: Sequence[str]) -> list[list[str]]:
    """Return the rows of the table host x check, a word each; the first row is the heading."""
    rows = [["host", *columns]]
    for host in cluster.names:
        words = []
        for check in columns:
            here = [finding.word for finding in findings if finding.check == check and host in finding.hosts]
            words.append(here[0] if here else "ok")
        rows.append([host, *words])
    return rows


def lines(findings: Sequence[Finding]) -> list[str]:
    """Return the findings as people read them."""
    shown = []
    for number, finding in enumerate(findings, start=1):
        title = "problem" if finding.severity == "error" else "warning"
        shown += ["", f"{title} {number}: {finding.what}", f"  why  {finding.why}", f"  do   {finding.do}"]
    return shown


def as_dicts(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return the findings as JSON can hold them."""
    return [asdict(finding) for finding in findings]
