#!/usr/bin/python
"""Ansible module: wait for news of a job and return them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_progress
short_description: Wait for news of a job and return them
description:
  - Looks at the run folder until something has changed since the last call, or O(wait) seconds have passed.
  - Changes nothing.
options:
  job: {description: Name of the job., type: str, required: true}
  launch: {description: Id of the launch., type: str, required: true}
  run_dir: {description: The run folder., type: path, required: true}
  user: {description: Account that the job runs as., type: str, required: true}
  offset: {description: "Byte of C(metrics.jsonl) to read from; the first call skips long ago.", type: int, default: 0}
  seen: {description: The C(digest) of the last call., type: str, default: ""}
  output_of:
    description: Also return what the first worker of this host prints, for programs that report no steps.
    type: str
    default: ""
  output_file: {description: The C(output_file) of the last call., type: str, default: ""}
  output_offset: {description: The C(output_offset) of the last call., type: int, default: 0}
  wait: {description: Seconds to wait for news at most., type: float, default: 20}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Wait for news
  torchrun.cluster.job_progress:
    job: train
    launch: 20261201T120000-1a2b
    run_dir: /srv/torchrun/runs/train
    user: trainer
"""

RETURN = r"""
events: {description: New lines of C(metrics.jsonl)., type: list, returned: always}
offset: {description: Where to read on., type: int, returned: always}
nodes: {description: What each host last reported., type: dict, returned: always}
outcome: {description: How the launch ended; empty while it runs., type: dict, returned: always}
unit: {description: State of this host's unit., type: dict, returned: always}
output: {description: New lines of the first worker., type: list, returned: always}
output_file: {description: The file that they are from., type: str, returned: always}
output_offset: {description: Where to read on., type: int, returned: always}
digest: {description: Changes when a host's report, the outcome or the unit changes., type: str, returned: always}
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import run_folder

# How often the folder is looked at: well over the cost of a look.
LOOK_SECONDS = 0.5
# How often systemd is asked: it costs a process, on the cores that train.
UNIT_SECONDS = 3.0
# Who comes back to a long run wants its end, not its whole history.
HISTORY_BYTES = 65536
# Hosts start within moments of one another, and each answer costs the cores that start the job: so long their reports
# may still change before they are told. What ends a job, or comes of it, is told at once.
SETTLE_SECONDS = 3.0
# Of a program that prints a lot, so many lines at a time.
OUTPUT_LINES = 50


def look(params: dict[str, Any], unit: dict[str, str]) -> dict[str, Any]:
    """Return the state of the job now; `unit` is that of this host's agent."""
    run_dir = Path(params["run_dir"])
    with run_folder.acting_as(params["user"]):
        if not params["seen"]:
            params["offset"] = max(params["offset"], run_folder.size(run_dir / "metrics.jsonl") - HISTORY_BYTES)
        events, offset = run_folder.read_events(run_dir / "metrics.jsonl", params["offset"])
        nodes = run_folder.node_reports(run_dir, params["launch"])
        outcome = run_folder.read_json(run_dir / "outcome.json")
        output: tuple[list[str], str, int] = ([], params["output_file"], params["output_offset"])
        if params["output_of"]:
            output = run_folder.new_output(
                run_dir / "logs" / params["output_of"], params["launch"], *output[1:], most=OUTPUT_LINES
            )
    if outcome.get("launch") != params["launch"]:
        outcome = {}
    digest = hashlib.sha256(json.dumps([nodes, outcome, unit], sort_keys=True).encode()).hexdigest()
    found = {"events": events, "offset": offset, "nodes": nodes, "outcome": outcome, "unit": unit, "digest": digest}
    return {**found, **dict(zip(("output", "output_file", "output_offset"), output))}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "job": {"type": "str", "required": True},
            "launch": {"type": "str", "required": True},
            "run_dir": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "offset": {"type": "int", "default": 0},
            "seen": {"type": "str", "default": ""},
            "output_of": {"type": "str", "default": ""},
            "output_file": {"type": "str", "default": ""},
            "output_offset": {"type": "int", "default": 0},
            "wait": {"type": "float", "default": 20.0},
        },
        supports_check_mode=True,
    )
    deadline = time.monotonic() + module.params["wait"]
    unit, asked_at = run_folder.unit_state(module.params["job"]), time.monotonic()
    digest, changed_at = module.params["seen"], time.monotonic()
    while True:
        if time.monotonic() - asked_at >= UNIT_SECONDS:
            unit, asked_at = run_folder.unit_state(module.params["job"]), time.monotonic()
        state = look(module.params, unit)
        if state["digest"] != digest:
            digest, changed_at = state["digest"], time.monotonic()
        over = state["outcome"] or unit.get("ActiveState") in ("failed", "inactive")
        settled = over or time.monotonic() - changed_at >= SETTLE_SECONDS
        if (
            state["events"]
            or state["output"]
            or (digest != module.params["seen"] and settled)
            or time.monotonic() >= deadline
        ):
            module.exit_json(changed=False, **state)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
