"""Filter plugin: the rank plan, for templates and for looking at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.torchrun.cluster.plugins.module_utils import rank_plan as planner

DOCUMENTATION = r"""
name: rank_plan
short_description: Which host gets which ranks
description: Takes hosts in inventory order and returns the members of a job with node_rank and ranks.
positional: nnodes
options:
  _input:
    description: Hosts with C(name) and the inventory variables C(cluster_addr), C(nproc_per_node) and C(node_rank).
    type: list
    elements: dict
    required: true
  nnodes: {description: "C(N), or C(MIN:MAX); all hosts by default.", type: str}
  nproc_per_node: {description: Overrides that of every host., type: str}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Show the plan of a job on two hosts
  ansible.builtin.debug:
    msg: "{{ [{'name': 'a', 'ansible_host': '10.0.0.1'}, {'name': 'b', 'ansible_host': '10.0.0.2'}]
             | torchrun.cluster.rank_plan(2) }}"
"""

RETURN = r"""
_value:
  description: C(members) with C(node_rank), C(ranks) (first and last) and the rest, C(world_size), C(master).
  type: dict
"""


def rank_plan(hosts: Sequence[Mapping[str, Any]], nnodes: Any = None, nproc_per_node: Any = None) -> dict[str, Any]:
    """Return the plan as a dictionary; hosts whose GPUs are not given count as having none."""
    try:
        plan = planner.plan(
            [planner.from_inventory(str(host["name"]), host, int(host.get("gpus", 0))) for host in hosts],
            nnodes,
            nproc_per_node,
        )
    except planner.PlanError as error:
        raise AnsibleFilterError(str(error)) from error
    members = [
        {**planner.as_dict(node), "ranks": [first, first + count - 1]}
        for node, first, count in zip(plan.members, plan.first_ranks, plan.processes)
    ]
    return {"members": members, "world_size": plan.world_size, "master": plan.master.name, "nnodes": plan.nnodes}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """Return the filters of this file."""
        return {"rank_plan": rank_plan}
