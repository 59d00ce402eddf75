#!/usr/bin/python
"""Ansible module: what this host and the shared storage know of a job that was launched before."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_recall
short_description: What this host and the shared storage know of a job that was launched before
description:
  - Reads C(job.yml) and the outcome from the run folder, and whether the job's unit runs here. Changes nothing.
options:
  job: {description: Name of the job., type: str, required: true}
  user: {description: Account that the job runs as., type: str, required: true}
  shared_path: {description: The shared storage., type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Ask for a job
  torchrun.cluster.job_recall:
    job: train
    user: trainer
    shared_path: /srv/torchrun
"""

RETURN = r"""
description: {description: What C(job.yml) holds; empty where there is none., type: dict, returned: always}
outcome: {description: How that launch ended; empty while it is open., type: dict, returned: always}
running_launch: {description: Id of the launch that runs on this host., type: str, returned: always}
"""

import contextlib
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import run_folder


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
    run_dir = Path(module.params["shared_path"]) / "runs" / job
    description: dict[str, Any] = {}
    outcome: dict[str, Any] = {}
    # A host without the account is not provisioned: the others know the job.
    with contextlib.suppress(KeyError), run_folder.acting_as(module.params["user"]):
        description, outcome = run_folder.description_and_outcome(run_dir)
    running = run_folder.is_wanted(run_folder.unit_state(job))
    launch = run_folder.read_environment_file(job).get("TORCHRUN_LAUNCH", "") if running else ""
    module.exit_json(changed=False, description=description, outcome=outcome, running_launch=launch)


if __name__ == "__main__":
    main()
