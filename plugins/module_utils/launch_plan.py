"""What a launch does, decided from the options, the inventory and what every member answered. Pure functions."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ansible_collections.torchrun.cluster.plugins.module_utils.job_env import PACKAGED_TRAINER
from ansible_collections.torchrun.cluster.plugins.module_utils.rank_plan import Plan


class LaunchError(Exception):
    """The launch is refused; the message is one sentence."""


def sealed(launch: str, value: Any) -> str:
    """Return a digest that tells whether a value is the same, without telling the value: it may hold the user's tokens.

    Salted with the launch id, so equal values of two launches cannot be recognised either.
    """
    return hashlib.sha256(json.dumps([launch, value], sort_keys=True).encode()).hexdigest()


def program_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return what identifies the program: continuing a run is only right for the same one.

    A script is named by its path within the project folder, or by its name where it is copied alone. A job that is
    resumed has the `program` that it had.
    """
    if options.get("program"):
        return dict(options["program"])
    if options.get("script"):
        script = PurePosixPath(options["script"])
        return {"script": str(script.relative_to(options["workdir"])) if options.get("workdir") else script.name}
    return {"module": options.get("module") or PACKAGED_TRAINER}


def specification(
    launch: str, options: Mapping[str, Any], texts: Mapping[str, Any], nproc: Mapping[str, int]
) -> dict[str, Any]:
    """Return all that was asked for, in a form that two launches can be compared by.

    `texts` are code (its digest), env and requirements; `nproc` is the number of processes of each member, in
    node_rank order.
    """
    return {
        "nnodes": str(options["nnodes"]),
        "nproc_per_node": dict(nproc),
        "rdzv_backend": options["rdzv_backend"],
        "master_port": options["master_port"],
        "max_restarts": options["max_restarts"],
        "hang_timeout": options["hang_timeout"],
        "program": program_of(options),
        "script_args": list(options["script_args"]),
        **{name: sealed(launch, text) for name, text in texts.items()},
    }


def running_launch(reports: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the id of the launch that runs on any member, or None.

    Raises LaunchError where members run different ones.
    """
    launches = {report["running_launch"] for report in reports.values() if report["running_launch"]}
    if len(launches) > 1:
        job = next(iter(reports.values()))["description"].get("job", "the job")
        raise LaunchError(
            f"The members run different launches of {job} ({', '.join(sorted(launches))}): "
            f"end them with `ansible-playbook playbooks/stop.yml -e job={job}`, then launch again."
        )
    return launches.pop() if launches else None


def check_same(job: str, running: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise LaunchError where a running job was launched with other options than those wanted now."""
    changed = [name for name in wanted if running.get(name) != wanted[name]]
    if not changed:
        return
    told = {"code": "the code", "env": "env", "requirements": "the requirements"}
    words = [
        told.get(name) or f"{name} was {_plain(running.get(name))}, now {_plain(wanted[name])}" for name in changed
    ]
    raise LaunchError(
        f"The job {job} already runs, with other options ({'; '.join(words)}): stop it with "
        f"`ansible-playbook playbooks/stop.yml -e job={job}`, or launch under another name with -e job=NAME."
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def gpus_for(host: str, report: Mapping[str, Any], nproc: int, slots: int) -> list[int] | None:
    """Return the GPU indices that a job gets on a host, or None when it needs no choice (all of them, or no GPU).

    Raises LaunchError, naming the job that has them, where fewer than `nproc` of the host's `slots` are free.
    """
    others = report["others"]
    used = sum(other["slots"] for other in others.values())
    if used + nproc > slots:
        first = next(iter(others), None)
        if first is None:  # the user asked for more processes than the inventory gives this host: their choice
            return None
        raise LaunchError(
            f"The job {first} uses {others[first]['slots']} of the {slots} slots of {host}; this one needs {nproc}: "
            f"stop it with `ansible-playbook playbooks/stop.yml -e job={first}`, or launch on other hosts."
        )
    if not report["gpus"] or (nproc == report["gpus"] and not others):
        return None
    taken = {int(index) for other in others.values() for index in (other["gpus"] or "").split(",") if index}
    free = [index for index in range(report["gpus"]) if index not in taken]
    return free[:nproc]


def check_equal(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise LaunchError where members have different venvs or trainers: a job needs the same everywhere."""
    for name, what in (("python", "PyTorch venv"), ("trainer_path", "trainer")):
        kinds: dict[str, list[str]] = {}
        for host, report in reports.items():
            kinds.setdefault(report[name], []).append(host)
        if len(kinds) > 1:
            odd = min(kinds.values(), key=len)
            raise LaunchError(
                f"{', '.join(odd)} has another {what} than the other members: run `ansible-playbook site.yml`."
            )


# What job.yml keeps as it was given, so that the job can be launched again without it.
KEPT_OPTIONS = (
    "nnodes", "nproc_per_node", "rdzv_backend", "master_port", "max_restarts", "hang_timeout", "script_args",
)  # fmt: skip


def describe(
    launch: str,
    job: str,
    specification: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    code: str | None,
    env: Mapping[str, str],
    world_size: str,
    nodes: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return what job.yml holds. Of env only the names: its values are secrets, and this is on the shared storage.

    `code` is the digest of the user's code.
    """
    return {
        "job": job,
        "launch": launch,
        "began": time.time(),
        "world_size": world_size,
        "program": specification["program"],
        "specification": dict(specification),
        "options": {name: options.get(name) for name in KEPT_OPTIONS},
        "code": code,
        "has_requirements": bool(options.get("requirements")),
        "env_names": sorted(env),
        "nodes": [dict(node) for node in nodes],
    }


def facts_of(plan: Plan) -> dict[str, Any]:
    """Return the fact `launch`: what the tasks of a launch must know of its members before they are asked."""
    return {
        "members": [node.name for node in plan.members],
        "master": plan.master.name,
        "addresses": {node.name: node.address for node in plan.members},
        "aliases": {node.alias: node.address for node in plan.members},
        "validated": time.time(),
    }


def check_all_take_part(plan: Plan, hosts: Sequence[str]) -> None:
    """Raise LaunchError where --limit leaves out a member."""
    absent = [node.name for node in plan.members if node.name not in hosts]
    if absent:
        raise LaunchError(
            f"--limit leaves out {', '.join(absent)}, on which the job runs too: drop --limit, or give fewer nnodes."
        )
