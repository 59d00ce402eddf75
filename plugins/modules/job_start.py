#!/usr/bin/python
"""Ansible module: start this host's agent of a job."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_start
short_description: Start this host's agent of a job
description:
  - Writes the environment file, enables the unit (so that a rebooted node rejoins) and starts it.
  - An agent that already runs for this launch is left alone. Refuses what another launch has taken in the meantime.
options:
  job: {description: Name of the job., type: str, required: true}
  launch: {description: Id of the launch., type: str, required: true}
  environment_file: {description: Text of the environment file., type: str, required: true}
  peers:
    description: C(address) and C(ports) of the other members that listen, by name; each is tried first.
    type: dict
    default: {}
  slots: {description: Processes of all jobs together that this host takes., type: int, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Start the agent
  torchrun.cluster.job_start:
    job: train
    launch: 20261201T120000-1a2b
    slots: 2
    environment_file: |
      PET_NNODES="2"
"""

RETURN = r""" # """

import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import run_folder, slots
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight import network


def unreached(peers: dict[str, dict[str, Any]]) -> str | None:
    """Try the other members; return a sentence where one is not reached."""
    for peer, tried in network.probe(peers).items():
        if "problem" in tried:
            return (
                f"{peer} ({peers[peer]['address']}) is not reached from this host on high ports ({tried['problem']}), "
                "which NCCL and gloo choose: run `ansible-playbook playbooks/preflight.yml`, or give -e preflight=skip."
            )
    return None


def start(module: AnsibleModule, params: dict[str, Any], state: dict[str, str]) -> None:
    """Write the file, then start and enable the unit, without waiting for the rendezvous."""
    unit = f"torchrun@{params['job']}.service"
    run_folder.write_file(run_folder.JOBS_DIR / f"{params['job']}.env", params["environment_file"], 0o600)
    commands = [
        ["systemctl", "restart" if run_folder.is_wanted(state) else "start", unit],
        # A link in a folder is all of it: what systemd has loaded does not change.
        ["systemctl", "--quiet", "--no-reload", "enable", unit],
    ]
    if state.get("ActiveState") == "failed":
        # A unit that failed too often stays refused until its count is reset.
        commands.insert(0, ["systemctl", "reset-failed", unit])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            module.fail_json(
                msg=f"{unit} did not start ({done.stderr.strip() or 'no message'}): "
                f"read `journalctl -u {unit}` on this host."
            )


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "job": {"type": "str", "required": True},
            "launch": {"type": "str", "required": True},
            # It may hold the user's tokens.
            "environment_file": {"type": "str", "required": True, "no_log": True},
            "slots": {"type": "int", "required": True},
            "peers": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    job, launch = module.params["job"], module.params["launch"]
    state = run_folder.unit_state(job)
    if run_folder.is_wanted(state) and run_folder.read_environment_file(job).get("TORCHRUN_LAUNCH") == launch:
        module.exit_json(changed=False)
    if not module.check_mode:
        unreachable = unreached(module.params["peers"])
        if unreachable:
            module.fail_json(msg=unreachable)
        try:
            with run_folder.one_launch_at_a_time():
                others = {name: taken for name, taken in run_folder.jobs_on_host().items() if name != job}
                wanted = run_folder.parse_environment(module.params["environment_file"])
                taken = slots.conflict(wanted, others, module.params["slots"], wanted["TORCHRUN_NODE_RANK"] == "0")
                if taken:
                    module.fail_json(msg=taken)
                start(module, module.params, state)
        except OSError as error:
            module.fail_json(
                msg=f"The environment file of the job {job} cannot be written to {run_folder.JOBS_DIR}: "
                f"{error.strerror or error}. Run site.yml, then launch again."
            )
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
