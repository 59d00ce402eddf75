"""Which runs go when old ones are removed. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.torchrun.cluster.plugins.module_utils import run_history

UNITS = ("B", "kB", "MB", "GB", "TB")


def choose(
    runs: Sequence[Mapping[str, Any]],
    hosts: Mapping[str, Mapping[str, Any] | None],
    keep: int,
    job: str,
    unfinished: bool,
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return (the runs that go, those that stay only because they have not finished).

    Of each job the newest `keep` stay, and what runs or may run: a host that does not answer may run it. `job`
    restricts it to one job, '' means all.
    """
    gone: list[Mapping[str, Any]] = []
    resumable: list[Mapping[str, Any]] = []
    for name, entries in run_history.newest_first(runs).items():
        for run in entries[keep:]:
            state = run_history.state(run, hosts)
            if job not in ("", name) or state in (run_history.RUNNING, run_history.NO_ANSWER):
                continue
            (gone if state == run_history.FINISHED or unfinished else resumable).append(run)
    return gone, resumable


def size(count: int) -> str:
    """Return a number of bytes for people: `312 kB`, `1.4 GB`."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {UNITS[unit]}" if unit == 0 or value >= 10 else f"{value:.1f} {UNITS[unit]}"


def lines(removed: Mapping[str, Sequence[Mapping[str, Any]]], resumable: Sequence[str], check: bool) -> list[str]:
    """Return what was removed, by host (results of job_clean), and what stays because it can be resumed."""
    verb = "would remove" if check else "removed"
    items = [(host, item) for host, found in removed.items() for item in found]
    total = sum(item["bytes"] for _, item in items)
    shown = [f"  {verb}  {size(item['bytes']):>7}  {host}: {item['path']}" for host, item in items]
    shown.append(f"{verb} {size(total)} in all" if items else "Nothing is left to remove.")
    if resumable:
        shown.append(
            f"{', '.join(resumable)} stopped or failed, and can be resumed: -e unfinished=true removes such runs too."
        )
    return shown
