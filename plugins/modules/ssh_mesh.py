#!/usr/bin/python
"""Ansible module: let an account of this node reach, and be reached from, every node of the cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_mesh
short_description: Let an account of this node reach, and be reached from, every node of the cluster
description:
  - Keeps a block in the account's C(authorized_keys) and one in C(/etc/ssh/ssh_known_hosts).
  - A key opens only from the address of its own node.
  - Keys of nodes that were not asked now (down, or left out by --limit) are kept as they are.
options:
  user: {description: The account., type: str, required: true}
  nodes:
    description: All nodes of the cluster, each with C(name), C(alias) and C(address).
    type: list
    elements: dict
    required: true
  identities:
    description: The C(identity) of each node that was asked, by name.
    type: dict
    required: true
  known_hosts: {description: The file of host keys., type: path, default: /etc/ssh/ssh_known_hosts}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Install all keys
  torchrun.cluster.ssh_mesh:
    user: trainer
    nodes: [{name: node1, alias: trn-0000-node1, address: 10.0.0.11}]
    identities: {node1: {public_key: ssh-ed25519 AAAA, host_keys: [ssh-ed25519 AAAA]}}
"""

RETURN = r""" # """

import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import text_block
from ansible_collections.torchrun.cluster.plugins.module_utils.run_folder import acting_as


def authorized_lines(
    nodes: Sequence[Mapping[str, str]], identities: Mapping[str, Mapping[str, Any]], present: Sequence[str]
) -> list[str]:
    """Return one line a node; a node without identity keeps the line it had, found by its comment."""
    kept = {line.split()[-1]: line for line in present if line.strip()}
    lines = []
    for node in nodes:
        identity = identities.get(node["name"]) or {}
        if identity:
            key = identity["public_key"]
            lines.append(f'from="{node["address"]},127.0.0.1,::1" {key} {node["alias"]}')
        elif node["alias"] in kept:
            lines.append(kept[node["alias"]])
    return lines


def known_lines(
    nodes: Sequence[Mapping[str, str]], identities: Mapping[str, Mapping[str, Any]], present: Sequence[str]
) -> list[str]:
    """Return one line a host key; a node without identity keeps the lines it had, found by its alias."""
    lines = []
    for node in nodes:
        identity = identities.get(node["name"]) or {}
        names = ",".join(dict.fromkeys([node["name"], node["alias"], node["address"]]))
        if identity:
            lines += [f"{names} {key}" for key in identity["host_keys"]]
        else:
            lines += [line for line in present if node["alias"] in line.split(" ")[0].split(",")]
    return lines


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "identities": {"type": "dict", "required": True},
            "known_hosts": {"type": "path", "default": "/etc/ssh/ssh_known_hosts"},
        },
        supports_check_mode=True,
    )
    user, nodes, identities = (module.params[name] for name in ("user", "nodes", "identities"))
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        if module.check_mode:  # the base role would have made it
            module.exit_json(changed=True)
        module.fail_json(msg=f"The account {user} is not on this host: the base role makes it, so let it run first.")
    authorized = Path(account.pw_dir) / ".ssh/authorized_keys"
    known = Path(module.params["known_hosts"])
    diffs = []
    for path, lines_for, mode in ((authorized, authorized_lines, 0o600), (known, known_lines, 0o644)):
        before = path.read_text() if path.exists() else ""
        present, others = text_block.split(before)
        after = text_block.join(lines_for(nodes, identities, present), others)
        if after == before:
            continue
        diffs.append({"before": before, "after": after, "before_header": str(path), "after_header": str(path)})
        if module.check_mode:
            continue
        if path is authorized:
            with acting_as(user):  # root may be nobody in a home on shared storage
                text_block.write(path, after, mode, (account.pw_uid, account.pw_gid))
        else:
            text_block.write(path, after, mode)
    module.exit_json(changed=bool(diffs), diff=diffs)


if __name__ == "__main__":
    main()
