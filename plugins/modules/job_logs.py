#!/usr/bin/python
"""Ansible module: the last lines that a job's unit wrote to this host's journal."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_logs
short_description: The last lines that a job's unit wrote to this host's journal
description:
  - Each line comes with its time, so that the lines of several hosts can be merged. Changes nothing.
options:
  job: {description: Name of the job., type: str, required: true}
  lines: {description: So many lines from the end., type: int, default: 50}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Read the journal
  torchrun.cluster.job_logs:
    job: train
    lines: 20
"""

RETURN = r"""
known: {description: Whether this host has the job at all., type: bool, returned: always}
entries: {description: "Pairs of unix microseconds and text, oldest first.", type: list, returned: always}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import journal, run_folder


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={"job": {"type": "str", "required": True}, "lines": {"type": "int", "default": 50}},
        supports_check_mode=True,
    )
    job = module.params["job"]
    if not (run_folder.JOBS_DIR / f"{job}.env").exists():
        module.exit_json(changed=False, known=False, entries=[])
    unit = f"torchrun@{job}.service"
    try:
        entries = journal.read([f"--unit={unit}", f"--lines={module.params['lines']}"])
    except journal.JournalError as error:
        module.fail_json(msg=f"The journal of {unit} cannot be read: {error}")
    module.exit_json(changed=False, known=True, entries=[(when, text) for when, _, text in entries])


if __name__ == "__main__":
    main()
