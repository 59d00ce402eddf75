#!/usr/bin/python
"""Ansible module: names and aliases of all nodes in /etc/hosts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hosts_aliases
short_description: Names and aliases of all nodes in /etc/hosts
description:
  - Keeps a block on top of the file, above a line that gives the host's own name a loopback address.
  - While a job runs on the host, aliases that it may restart with are kept, even when the inventory has others now.
options:
  nodes:
    description: All nodes of the cluster, each with C(name), C(alias) and C(address).
    type: list
    elements: dict
    required: true
  path: {description: The file., type: path, default: /etc/hosts}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Write the aliases
  torchrun.cluster.hosts_aliases:
    nodes:
      - {name: node1, alias: trn-0000-node1, address: 10.0.0.11}
"""

RETURN = r""" # """

from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import rank_plan, run_folder, text_block


def wanted_lines(nodes: Sequence[Mapping[str, str]], present: Sequence[str], job_runs: bool) -> list[str]:
    """Return the lines of the block: one a node, and while a job runs also aliases of before that no node has now."""
    lines = []
    for node in nodes:
        # An inventory name may be an address, which is no name for /etc/hosts.
        names = [node["alias"]] if rank_plan.is_address(node["name"]) else [node["name"], node["alias"]]
        lines.append(" ".join([node["address"], *names]))
    if job_runs:
        aliases = {node["alias"] for node in nodes}
        for line in present:
            address, *names = line.split()
            kept = [name for name in names if name.startswith("trn-") and name not in aliases]
            lines += [f"{address} {alias}" for alias in kept]
    return lines


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "path": {"type": "path", "default": "/etc/hosts"},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    before = path.read_text() if path.exists() else ""
    present, others = text_block.split(before)
    lines = wanted_lines(module.params["nodes"], present, bool(run_folder.jobs_on_host()))
    after = text_block.join(lines, others)
    changed = after != before
    if changed and not module.check_mode:
        text_block.write(path, after, 0o644)
    module.exit_json(
        changed=changed, diff={"before": before, "after": after, "before_header": str(path), "after_header": str(path)}
    )


if __name__ == "__main__":
    main()
