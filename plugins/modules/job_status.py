#!/usr/bin/python
"""Ansible module: the jobs that this host knows, and how they are."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_status
short_description: The jobs that this host knows, and how they are
description:
  - One entry a job that was launched on this host, from its unit, its environment file and the run folder.
  - Changes nothing.
options:
  history: {description: Also return all runs on the shared storage., type: bool, default: false}
  job: {description: Only this job; every job when empty., type: str, default: ""}
  shared_path: {description: The shared storage., type: path, required: true}
  user: {description: Account that jobs run as., type: str, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Ask for every job
  torchrun.cluster.job_status:
    shared_path: /srv/torchrun
    user: trainer
"""

RETURN = r"""
runs: {description: "An entry for each run, see C(run_history).", type: list, returned: where it can be read}
jobs: {description: The state of each job on this host, by job name., type: dict, returned: always}
"""

import contextlib
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import run_folder, run_history


def state_of(job: str, runs: Path, user: str) -> dict[str, Any]:
    """Return one job's state on this host. Times are unix seconds; `ranks` is [first, last] or None."""
    variables = run_folder.read_environment_file(job)
    unit = run_folder.unit_state(job)
    with run_folder.acting_as(user):
        reports = run_folder.node_reports(runs / job, variables.get("TORCHRUN_LAUNCH", ""))
        step = run_folder.last_event(runs / job / "metrics.jsonl", "step")
        start = run_folder.last_event(runs / job / "metrics.jsonl", "start")
    report = reports.get(variables.get("TORCHRUN_HOST", ""), {})
    state = report.get("state", "unknown")
    if unit.get("ActiveState") == "failed" and state not in ("failed", "finished", "stopped"):
        state = f"failed ({unit.get('Result')})"
    return {
        "state": state,
        "active": run_folder.is_wanted(unit),
        "launch": variables.get("TORCHRUN_LAUNCH", ""),
        "node_rank": int(variables.get("TORCHRUN_NODE_RANK", "-1")),
        "nproc_per_node": int(variables.get("PET_NPROC_PER_NODE", "0")),
        "ranks": report.get("ranks"),
        "world_size": report.get("world_size"),
        "since": report.get("since"),
        "restarts": int(unit.get("NRestarts") or 0),
        "step": step.get("step"),
        "steps": start.get("steps"),
        "loss": step.get("loss"),
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "history": {"type": "bool", "default": False},
            "job": {"type": "str", "default": ""},
            "shared_path": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    runs = Path(module.params["shared_path"]) / "runs"
    names = sorted(path.stem for path in run_folder.JOBS_DIR.glob("*.env"))
    wanted = [name for name in names if module.params["job"] in ("", name)]
    found: dict[str, Any] = {"jobs": {name: state_of(name, runs, module.params["user"]) for name in wanted}}
    if module.params["history"]:
        # Without the account or the storage, others have it.
        with contextlib.suppress(KeyError, OSError), run_folder.acting_as(module.params["user"]):
            entries = run_history.read(runs)
            found["runs"] = [entry for entry in entries if module.params["job"] in ("", entry["job"])]
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
