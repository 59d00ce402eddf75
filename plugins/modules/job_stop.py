#!/usr/bin/python
"""Ansible module: stop this host's agent of a job, and wait until its workers have saved and left."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_stop
short_description: Stop this host's agent of a job
description:
  - Marks the job as stopped on the shared storage, so that no agent takes the others' leaving for a failure.
  - Then disables and stops the unit, and waits until the workers have saved and left.
options:
  job: {description: Name of the job., type: str, required: true}
  user: {description: Account that the job runs as., type: str, required: true}
  shared_path: {description: The shared storage., type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Stop the agent
  torchrun.cluster.job_stop:
    job: train
    user: trainer
    shared_path: /srv/torchrun
"""

RETURN = r"""
known: {description: Whether this host has the job at all., type: bool, returned: always}
step: {description: The last step that the job reported., type: int, returned: when the trainer reports steps}
"""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import run_folder


def mark_stopped(run_dir: Path, launch: str, host: str) -> None:
    """Say that the job was stopped on purpose, unless it has ended already or this host's launch is not its newest."""
    if run_folder.read_json(run_dir / "job.yml").get("launch") != launch:
        return
    outcome = {"launch": launch, "status": "stopped", "host": host, "time": time.time()}
    with tempfile.NamedTemporaryFile("w", dir=run_dir, prefix=".outcome.", delete=True) as file:
        file.write(json.dumps(outcome) + "\n")
        file.flush()
        with contextlib.suppress(FileExistsError):
            os.link(file.name, run_dir / "outcome.json")


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "job": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "shared_path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    job = module.params["job"]
    unit = f"torchrun@{job}.service"
    variables = run_folder.read_environment_file(job)
    state = run_folder.unit_state(job)
    wanted = run_folder.is_wanted(state) or run_folder.is_enabled(job)
    run_dir = Path(module.params["shared_path"]) / "runs" / job
    if not wanted or module.check_mode:
        with contextlib.suppress(KeyError), run_folder.acting_as(module.params["user"]):
            variables = variables or run_folder.read_json(run_dir / "job.yml")
        module.exit_json(changed=wanted, known=bool(variables))
    try:
        with run_folder.acting_as(module.params["user"]):
            mark_stopped(run_dir, variables.get("TORCHRUN_LAUNCH", ""), variables.get("TORCHRUN_HOST", ""))
    except OSError as error:  # the storage may be why the job is stopped
        module.warn(f"The stop of {job} could not be noted in {run_dir}: {error.strerror or error}.")
    subprocess.run(["systemctl", "--quiet", "--no-reload", "disable", unit], check=False, capture_output=True)
    done = subprocess.run(["systemctl", "stop", unit], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        module.fail_json(msg=f"{unit} did not stop: {done.stderr.strip()} Read `journalctl -u {unit}` on this host.")
    with run_folder.acting_as(module.params["user"]):
        step = run_folder.last_event(run_dir / "metrics.jsonl", "step").get("step")
    module.exit_json(changed=True, known=True, **({} if step is None else {"step": step}))


if __name__ == "__main__":
    main()
