"""The runs on the shared storage: read on a node, judged and shown on the controller. Standard library only."""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ansible_collections.torchrun.cluster.plugins.module_utils import follow_view, job_views, run_folder

HEADER = ("launch", "state", "began", "took", "world", "step")
RUNNING, NO_ANSWER, INTERRUPTED, FINISHED = "running", "no answer", "interrupted", "finished"


def read(runs: Path) -> list[dict[str, Any]]:
    """Return an entry for each run. Raises OSError where the folder of all runs cannot be read."""
    found = (entry_of(folder) for folder in sorted(runs.iterdir()))
    return [entry for entry in found if entry]


def entry_of(folder: Path) -> dict[str, Any] | None:
    """Return what a run folder says of its run, or None where it is no run folder of ours.

    `status` is empty while the run is open; times are unix seconds.
    """
    if folder.is_symlink() or not folder.is_dir():
        return None
    description, outcome = run_folder.description_and_outcome(folder)
    job, launch = description.get("job"), description.get("launch")
    if not job or not launch or folder.name not in (job, f"{job}.{launch}"):
        return None
    nodes = run_folder.node_reports(folder, launch)
    metrics, offset = folder / "metrics.jsonl", description.get("metrics_offset", 0)
    failed = follow_view.cause(nodes, outcome) if outcome.get("status") == "failed" else None
    worlds = [node["world_size"] for node in nodes.values() if node.get("world_size")]
    return {
        "job": job,
        "launch": launch,
        "folder": folder.name,
        "status": outcome.get("status", ""),
        "reason": f"{failed[1]}: {follow_view.of_failure(failed[0])}" if failed else "",
        "began": description.get("began") or _time_of(launch),
        "ended": outcome.get("time") or max((node.get("since", 0.0) for node in nodes.values()), default=None),
        "world_size": str(worlds[0] if worlds else description.get("world_size", "-")),
        "step": run_folder.last_event(metrics, "step", offset=offset).get("step"),
        "steps": run_folder.first_event(metrics, "start", offset).get("steps"),
        "members": [node["name"] for node in description.get("nodes", [])],
    }


def _time_of(launch: str) -> float | None:
    """Return the time with which the id of a launch begins."""
    try:
        return float(calendar.timegm(time.strptime(launch[:15], "%Y%m%dT%H%M%S")))
    except ValueError:
        return None


def is_aside(run: Mapping[str, Any]) -> bool:
    """Tell whether a later run has taken the folder with the job's own name."""
    return bool(run["folder"] != run["job"])


def state(run: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Return the state of a run: how it ended, `running`, `interrupted`, or `no answer` where its hosts cannot tell.

    `hosts` gives each host's jobs (the result of job_status), or None for one that did not answer.
    """
    if is_aside(run):
        return run["status"] or INTERRUPTED
    mine = [jobs[run["job"]] for jobs in hosts.values() if jobs and run["job"] in jobs]
    if any(entry["active"] and entry["launch"] == run["launch"] for entry in mine):
        return RUNNING
    if run["status"]:
        return str(run["status"])
    return NO_ANSWER if any(hosts.get(host) is None for host in run["members"]) else INTERRUPTED


def over(runs: Sequence[Mapping[str, Any]], hosts: Mapping[str, Mapping[str, Any] | None]) -> set[str]:
    """Return the jobs that hosts know and that run nowhere: their end is in the history."""
    known = {(name, entry["active"]) for jobs in hosts.values() if jobs for name, entry in jobs.items()}
    still = {run["job"] for run in runs if not is_aside(run) and state(run, hosts) in (RUNNING, NO_ANSWER)}
    return {name for name, _ in known} - still - {name for name, active in known if active}


def of_answers(answers: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the runs as the first host that could read them tells them, or None."""
    return next((answer["runs"] for answer in answers.values() if answer.get("runs") is not None), None)


def newest_first(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the runs of each job, the newest first: the ids of launches begin with the time."""
    jobs: dict[str, list[Mapping[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: str(run["launch"]), reverse=True):
        jobs.setdefault(run["job"], []).append(run)
    return dict(sorted(jobs.items()))


def lines(
    runs: Sequence[Mapping[str, Any]], hosts: Mapping[str, Mapping[str, Any] | None], now: float, width: int = 100
) -> list[str]:
    """Return one table a job. What does not fit in `width` columns of a reason is cut."""
    jobs = newest_first(runs)
    rows = [_row(run, state(run, hosts), now) for entries in jobs.values() for run in entries]
    header, *table = job_views.align([HEADER, *rows])
    shown: list[str] = []
    for job, entries in jobs.items():
        shown += ["", f"runs of {job}", f"  {header}"]
        for run in entries:
            shown.append(f"  {table.pop(0)}")
            if run["reason"]:
                shown.append(job_views.cut(f"    {job_views.printable(run['reason'])}", width))
    return shown


def _row(run: Mapping[str, Any], state_now: str, now: float) -> tuple[str, ...]:
    ended = now if state_now == RUNNING else run["ended"]
    known = run["began"] is not None and ended is not None
    return (
        run["launch"],
        state_now,
        "-" if run["began"] is None else datetime.fromtimestamp(run["began"]).strftime("%Y-%m-%d %H:%M"),
        str(timedelta(seconds=max(0, int(ended - run["began"])))) if known else "-",
        run["world_size"],
        job_views.progress(run),
    )
