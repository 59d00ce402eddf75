#!/usr/bin/python
"""Ansible module: try every other host from this one, and read what they left on the shared storage."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_probe
short_description: Try every other host from this one, and read what they left on the shared storage
description:
  - After C(preflight_facts) on all hosts. Changes nothing.
options:
  peers: {description: "C(address) and C(ports) of each other host that listens, by name.", type: dict, required: true}
  hosts: {description: Hosts whose token is looked for., type: list, elements: str, required: true}
  mtu: {description: Largest packet of this host's interface., type: int, required: true}
  token: {description: What the tokens are named by., type: str, required: true}
  user: {description: Account that jobs run as., type: str, required: true}
  shared_path: {description: The shared storage., type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Try the others
  torchrun.cluster.preflight_probe:
    peers: {node2: {address: 10.0.0.12, ports: [40111, 29400]}}
    hosts: [node1, node2]
    mtu: 1500
    token: 1a2b3c
    user: trainer
    shared_path: /srv/torchrun
"""

RETURN = r"""
probe: {description: What came of each try., type: dict, returned: always}
tokens: {description: Hosts whose token is seen here., type: list, returned: always}
"""

import contextlib
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import run_folder
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight import network


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "peers": {"type": "dict", "required": True},
            "hosts": {"type": "list", "elements": "str", "required": True},
            "mtu": {"type": "int", "required": True},
            "token": {"type": "str", "required": True, "no_log": False},
            "user": {"type": "str", "required": True},
            "shared_path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    folder = Path(params["shared_path"]) / "runs/.preflight"
    found = network.probe(params["peers"], params["mtu"])
    seen: list[str] = []
    with contextlib.suppress(KeyError, OSError), run_folder.acting_as(params["user"]):
        seen = [host for host in params["hosts"] if (folder / f"{host}.{params['token']}").exists()]
    module.exit_json(changed=False, probe=found, tokens=seen)


if __name__ == "__main__":
    main()
