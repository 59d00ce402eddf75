#!/usr/bin/python
"""Ansible module: what a job had that is kept from others: its environment variables and its requirements."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_secrets
short_description: What a job had that is kept from others, to launch it again
description:
  - The values of the user's environment variables are only on the hosts of the job's last launch, for root alone;
    the text of its requirements is in the run folder, for the job's account alone. Changes nothing.
  - "What it returns must not be shown: give the task C(no_log: true)."
options:
  job: {description: Name of the job., type: str, required: true}
  user: {description: Account that the job runs as., type: str, required: true}
  shared_path: {description: The shared storage., type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Bring what is secret
  torchrun.cluster.job_secrets:
    job: train
    user: trainer
    shared_path: /srv/torchrun
  register: __secrets
  no_log: true
"""

RETURN = r"""
env: {description: The user's variables., type: dict, returned: where this host took part in the last launch}
requirements: {description: Text of the job's requirements; empty without., type: str, returned: always}
"""

import contextlib
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import job_env, run_folder


def secrets(job: str, run_dir: Path, user: str) -> dict[str, Any]:
    """Return what this host has of the launch that the run folder is of."""
    requirements = ""
    with run_folder.acting_as(user):
        description = run_folder.read_json(run_dir / "job.yml")
        with contextlib.suppress(OSError):
            requirements = (run_dir / "requirements.txt").read_text(encoding="utf-8").rstrip()
    variables = run_folder.read_environment_file(job)
    if not variables or variables.get("TORCHRUN_LAUNCH") != description.get("launch"):
        return {"requirements": requirements}
    return {"requirements": requirements, "env": job_env.given(variables, description.get("env_names", []))}


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
    params = module.params
    try:
        found = secrets(params["job"], Path(params["shared_path"]) / "runs" / params["job"], params["user"])
    except KeyError:  # no such account: this host is not provisioned, and has no job
        found = {"requirements": ""}
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
