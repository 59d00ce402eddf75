"""What status.yml, logs.yml and stop.yml show, as lines of text. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

HEADER = ("host", "state", "node_rank", "ranks", "step", "since")


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def rank_range(ranks: Sequence[int] | None) -> str:
    """Return `0-1`, `2`, or `-` before the rendezvous."""
    if not ranks:
        return "-"
    first, last = ranks
    return str(first) if first == last else f"{first}-{last}"


def ago(since: float | None, now: float) -> str:
    """Return how long ago a unix time is, to the second."""
    return "-" if since is None else f"{timedelta(seconds=max(0, int(now - since)))} ago"


def progress(entry: Mapping[str, Any]) -> str:
    """Return `120/1000`, or `-` where the program reports no steps."""
    step, steps = entry.get("step"), entry.get("steps")
    if step is None:
        return "-"
    return f"{step}/{steps}" if steps else str(step)


def status(
    hosts: Mapping[str, Mapping[str, Any] | None], job: str, now: float, over: Collection[str] = ()
) -> list[str]:
    """Return one table a job, but for those that are `over`.

    `hosts` gives each host's jobs (the result of job_status), or None for a host that did not answer; `job` restricts
    the view to one, '' shows all; `now` is in unix seconds.
    """
    silent = [host for host, jobs in hosts.items() if jobs is None]
    names = sorted({name for jobs in hosts.values() if jobs for name in jobs})
    lines: list[str] = []
    for name in sorted(set(names) - set(over)):
        entries = [(host, jobs[name]) for host, jobs in hosts.items() if jobs and name in jobs]
        newest = max(entry["launch"] for _, entry in entries)  # ids begin with the time
        current = sorted(
            ((host, entry) for host, entry in entries if entry["launch"] == newest),
            key=lambda pair: pair[1]["node_rank"],
        )
        rows = [
            (
                host,
                entry["state"] + (f", {entry['restarts']} restarts" if entry["restarts"] else ""),
                str(entry["node_rank"]),
                rank_range(entry["ranks"]),
                progress(entry),
                ago(entry["since"], now),
            )
            for host, entry in current
        ]
        rows += [(host, "no answer", "-", "-", "-", "-") for host in silent]
        lines += ["", f"job {name} (launch {newest})", *(f"  {line}" for line in align([HEADER, *rows]))]
    if not names and not job:
        lines.append("No job was launched on these hosts yet.")
    if silent and not names:
        lines.append(f"No answer from {', '.join(silent)}.")
    return lines


def known_elsewhere(hosts: Mapping[str, Mapping[str, Any] | None], job: str) -> str | None:
    """Return a sentence when a job was asked for that no host knows, or None."""
    if not job or any(jobs and job in jobs for jobs in hosts.values()):
        return None
    return f"No host knows a job named {job}: playbooks/status.yml without job lists those there are."


def printable(text: str) -> str:
    """Return a line of a program as a terminal may get it: without the control characters that would steer it."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)


def cut(text: str, width: int) -> str:
    """Return a text that is no longer than `width`, with dots where something is left out."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def prefixed(host: str, text: str) -> str:
    """Return the line with `host:rank` (a worker's; torchrun has put it there) or `host` (the agent's) in front."""
    return text if re.match(rf"\[?{re.escape(host)}:\d+", text) else f"{host}: {text}"


def merged_logs(entries: Mapping[str, Sequence[tuple[int, str]]], lines: int) -> list[str]:
    """Return the last `lines` lines of all hosts together, ordered by time. Times are unix microseconds."""
    # The sort is stable: lines that a host wrote at one time stay in its order.
    merged = sorted(
        ((time, host, text) for host, pairs in entries.items() for time, text in pairs), key=lambda entry: entry[0]
    )
    return [prefixed(host, printable(line)) for _, host, text in merged[-lines:] for line in text.split("\n")]


def stopped(job: str, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what a stop did. `results` are those of job_stop, by host, without the hosts that did not answer."""
    hosts = [host for host, result in results.items() if result.get("changed")]
    if not hosts:
        return [f"The job {job} does not run: there was nothing to stop."]
    step = max((result["step"] for result in results.values() if "step" in result), default=None)
    saved = "" if step is None else f" at step {step}"
    return [
        f"The job {job} was stopped{saved} on {', '.join(hosts)}.",
        f"It goes on from its last checkpoint with: ansible-playbook playbooks/resume.yml -e job={job}",
    ]


def unreached(job: str, silent: Sequence[str], ranked: Sequence[str], verb: str) -> str:
    """Return what to do about hosts that did not answer a stop, or the one that a restart begins with.

    `ranked` are all hosts by node_rank: a launch with fewer nnodes takes the first of them.
    """
    whose, they = ("its agent", "it answers") if len(silent) == 1 else ("their agents", "they answer")
    who, again = f"{', '.join(silent)} could not be reached, so {whose} may still run", f"{verb}.yml again when {they}"
    if verb == "stop":
        return f"{who}: run {again}."
    without = min(ranked.index(host) for host in silent)
    go_on = (
        f", or go on without it: ansible-playbook playbooks/resume.yml -e job={job} -e nnodes={without}"
        if without
        else ""
    )
    return f"The job {job} is stopped elsewhere, but was not launched again: {who}. Run {again}{go_on}."
