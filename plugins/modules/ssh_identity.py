#!/usr/bin/python
"""Ansible module: this node's keys for SSH between nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_identity
short_description: This node's keys for SSH between nodes
description:
  - Makes an ed25519 key for the account when it has none, and returns it with the host keys of the node.
  - Over the connection that Ansible trusts already, so that what the others pin is certain.
options:
  user: {description: The account., type: str, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Make the key and read the host keys
  torchrun.cluster.ssh_identity:
    user: trainer
"""

RETURN = r"""
identity: {description: C(public_key) and C(host_keys); may be empty in check mode., type: dict, returned: always}
"""

import os
import pwd
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils.run_folder import acting_as


def key_of(line: str) -> str:
    """Return the type and the key of a public key's line, without its comment."""
    return " ".join(line.split()[:2])


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec={"user": {"type": "str", "required": True}}, supports_check_mode=True)
    user = module.params["user"]
    try:
        home = Path(pwd.getpwnam(user).pw_dir)
    except KeyError:
        if module.check_mode:  # the base role would have made it
            module.exit_json(changed=True, identity={})
        module.fail_json(msg=f"The account {user} is not on this host: the base role makes it, so let it run first.")
    key = home / ".ssh/id_ed25519"
    changed = not key.exists()
    if changed and module.check_mode:
        module.exit_json(changed=True, identity={})
    if changed:
        os.umask(0o077)
        with acting_as(user):
            key.parent.mkdir(mode=0o700, exist_ok=True)
            words = [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                f"{user}@{os.uname().nodename}",
                "-f",
                str(key),
            ]
            # In a process of its own: ssh-keygen asks for the real user, not the effective one.
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            module.fail_json(msg=f"ssh-keygen could not make {key}: {done.stderr.strip() or done.stdout.strip()}.")
    host_keys = [key_of(path.read_text()) for path in sorted(Path("/etc/ssh").glob("ssh_host_*_key.pub"))]
    if not host_keys:
        module.fail_json(msg="/etc/ssh has no host keys on this host: start its SSH server once, then run again.")
    identity = {"public_key": key_of(key.with_suffix(".pub").read_text()), "host_keys": host_keys}
    module.exit_json(changed=changed, identity=identity)


if __name__ == "__main__":
    main()
