"""Inventory plugin: the local nodes, from one small YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.display import Display
from ansible_collections.torchrun.cluster.plugins.module_utils import local_nodes

DOCUMENTATION = r"""
name: local_nodes
short_description: Local nodes, made by local/up.yml out of podman containers
description:
  - Reads a file that names the nodes; addresses, keys and paths are computed from it and the checkout's path.
  - Group C(nodes) has the members, group C(outsiders) those that share the network only.
options:
  plugin: {description: Names this plugin., required: true, choices: [torchrun.cluster.local_nodes]}
  scenario: {description: Name that keeps several sets of nodes of one checkout apart., type: str, default: default}
  nodes: {description: The nodes., type: list, elements: dict}
  count: {description: So many nodes of one process each instead of O(nodes)., type: int}
  outsiders: {description: Names of nodes that are no members., type: list, elements: str, default: []}
  base_image:
    description: Image to build on; empty makes one of the distribution's own packages (Debian 12).
    type: str
    default: ""
  network: {description: Subnet of the nodes; C(auto) computes one., type: str, default: auto}
author: [The ansible-torchrun authors]
"""


class InventoryModule(BaseInventoryPlugin):
    """Fill the inventory from `local_nodes.plan`."""

    NAME = "torchrun.cluster.local_nodes"

    def verify_file(self, path: str) -> bool:
        """Accept local_nodes.yml."""
        return bool(super().verify_file(path)) and Path(path).name == "local_nodes.yml"

    def parse(self, inventory: InventoryData, loader: DataLoader, path: str, cache: bool = True) -> None:
        """Add groups and hosts, or end the program with one sentence."""
        super().parse(inventory, loader, path, cache)
        description: dict[str, Any] = loader.load_from_file(path, cache="none") or {}
        checkout = Path(__file__).resolve().parents[2]
        try:
            planned = local_nodes.plan(description, str(checkout), checkout.stat().st_uid)
        except local_nodes.LocalNodesError as error:
            # Raised as an error, Ansible would try its other parsers on the file, and go on without hosts.
            Display().error(f"In {path}, {error}")
            raise SystemExit(1) from error
        inventory.set_variable("all", "local_nodes_file", path)
        for name, value in planned["all"].items():
            inventory.set_variable("all", name, value)
        for group in ("nodes", "outsiders"):
            inventory.add_group(group)
            for host in planned[group]:
                inventory.add_host(host, group=group)
                for name, value in planned["hosts"][host].items():
                    inventory.set_variable(host, name, value)
