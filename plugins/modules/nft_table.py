#!/usr/bin/python
"""Ansible module: tell whether an nftables table is still what was loaded."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nft_table
short_description: Tell whether an nftables table is still what was loaded
description:
  - Reports a change where the table is missing or another than the one listed in a file. Changes nothing itself; notify
    what loads the table again.
options:
  table: {description: Family and name of the table., type: str, required: true}
  loaded: {description: "File with the listing, without state, of when it was loaded.", type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: See whether the rules are still those that were loaded
  torchrun.cluster.nft_table:
    table: inet torchrun
    loaded: /run/torchrun-firewall.loaded
  notify: Load the rules
"""

RETURN = r""" # """

import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule


def listing(table: str) -> str:
    """Return a table as nft lists it, without counters; '' where there is no table, or no nft."""
    words = ["nft", "--stateless", "list", "table", *table.split()]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={"table": {"type": "str", "required": True}, "loaded": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    loaded = Path(module.params["loaded"])
    expected = loaded.read_text() if loaded.exists() else ""
    found = listing(module.params["table"])
    changed = not found or found != expected
    module.exit_json(changed=changed, diff={"before": found, "after": expected} if changed else {})


if __name__ == "__main__":
    main()
