#!/usr/bin/python
"""Ansible module: what the roles must know of a node, in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_facts
short_description: What the roles must know of a node, in one call
description:
  - Returns the fact C(node). Changes nothing.
options:
  address: {description: The node's address on the training network., type: str, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Look at the node
  torchrun.cluster.node_facts:
    address: 10.0.0.11
"""

RETURN = r"""
ansible_facts:
  description: The fact C(node) with interface, gpus, wheel_tag, systemd_version, own_clock, firewall_managers.
  type: dict
  returned: always
"""

import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import node


def command(*words: str) -> str:
    """Return the output of a command; '' where there is no such program."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""


def distribution() -> dict[str, str]:
    """Return the ID, VERSION_ID and so on of /etc/os-release."""
    pairs = (line.partition("=") for line in Path("/etc/os-release").read_text().splitlines())
    return {name: value.strip("\"'") for name, equals, value in pairs if equals}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec={"address": {"type": "str", "required": True}}, supports_check_mode=True)
    address = module.params["address"]
    release = distribution()
    family = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    if "debian" not in family:
        module.fail_json(
            msg=f"This host runs {release.get('PRETTY_NAME', 'an unknown distribution')}, "
            "and the roles know Debian and Ubuntu: install one of them."
        )
    interface = node.interface_of(address)
    if interface is None:
        module.fail_json(
            msg=f"No interface of this host has the address {address}: correct its cluster_addr in the inventory."
        )
    version = command("systemctl", "--version").split()
    active = command("systemctl", "is-active", "firewalld.service", "ufw.service").split()
    facts = {
        "interface": interface,
        "gpus": node.count_gpus(),
        "wheel_tag": f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}",
        "systemd_version": int(version[1]) if len(version) > 1 and version[1].isdigit() else 0,
        # A container shares the clock of its host, and cannot set it.
        "own_clock": command("systemd-detect-virt", "--container").strip() in ("", "none"),
        # Without its Python bindings, apt cannot tell in check mode what it would do.
        "has_apt_bindings": importlib.util.find_spec("apt") is not None,
        "firewall_managers": [name for name, state in zip(("firewalld", "ufw"), active) if state == "active"],
    }
    module.exit_json(changed=False, ansible_facts={"node": facts})


if __name__ == "__main__":
    main()
