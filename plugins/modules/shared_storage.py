#!/usr/bin/python
"""Ansible module: prove that a folder is the same shared storage on every node, and make its layout."""

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_storage
short_description: Prove that a folder is the same shared storage on every node, and make its layout
description:
  - On one node, without O(identity), it makes the folders C(runs), C(data) and C(wheels) and a file that identifies the
    storage, and returns its content. On the others, with O(identity), it compares.
options:
  path: {description: Where the storage is mounted., type: path, required: true}
  user: {description: Account that owns the folders., type: str, required: true}
  identity: {description: What the file must hold., type: str, default: ""}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Make the layout
  torchrun.cluster.shared_storage:
    path: /srv/torchrun
    user: trainer
"""

RETURN = r"""
identity: {description: What identifies the storage; may be empty in check mode., type: str, returned: always}
"""

import os
import pwd
import uuid
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils.run_folder import acting_as

FOLDERS = ("runs", "data", "wheels")
IDENTITY = ".torchrun-storage"


def account_of(module: AnsibleModule) -> pwd.struct_passwd:
    """Return the account; end the module where there is none, in check mode as the base role would make it."""
    try:
        return pwd.getpwnam(module.params["user"])
    except KeyError:
        if module.check_mode:
            module.exit_json(changed=True, identity="")
        module.fail_json(msg=f"The account {module.params['user']} is not on this host: let the base role run first.")
        raise


def make_layout(path: Path, user: str, account: pwd.struct_passwd) -> None:
    """Make what is missing, as root where root may, else as the account (storage may squash root to nobody)."""
    for folder in FOLDERS:
        place = path / folder
        try:
            place.mkdir(exist_ok=True)
            os.chown(place, account.pw_uid, account.pw_gid)
        except PermissionError:
            with acting_as(user):
                place.mkdir(exist_ok=True)
    with acting_as(user):
        temporary = path / "runs" / f"{IDENTITY}.{uuid.uuid4()}"
        temporary.write_text(f"{uuid.uuid4()}\n")
        temporary.replace(path / "runs" / IDENTITY)


def is_made(path: Path, account: pwd.struct_passwd) -> bool:
    """Tell whether every folder is there and belongs to the account, and the storage has its identity."""
    owned = all((path / folder).is_dir() and (path / folder).stat().st_uid == account.pw_uid for folder in FOLDERS)
    return owned and (path / "runs" / IDENTITY).exists()


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "identity": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    path, expected = Path(module.params["path"]), module.params["identity"]
    if not path.is_dir():
        module.fail_json(
            msg=f"shared_storage_path {path} is no directory on this host: mount the shared storage there, "
            "or give the path where it is mounted."
        )
    account = account_of(module)
    changed = not expected and not is_made(path, account)
    if changed and module.check_mode:
        module.exit_json(changed=True, identity="")
    try:
        if changed:
            make_layout(path, module.params["user"], account)
        with acting_as(module.params["user"]):
            found = (path / "runs" / IDENTITY).read_text().strip()
    except FileNotFoundError:
        found = ""
    except OSError as error:
        module.fail_json(msg=f"{path} cannot be used on this host ({error.strerror}): check its mount and its owner.")
    if expected and found != expected:
        module.fail_json(
            msg=f"{path} on this host is not the storage that the other nodes share: mount the same one there, "
            "or correct shared_storage_path."
        )
    module.exit_json(changed=changed, identity=found)


if __name__ == "__main__":
    main()
