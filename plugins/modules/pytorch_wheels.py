#!/usr/bin/python
"""Ansible module: fetch the wheels of a lock file into the shared storage, once for the cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pytorch_wheels
short_description: Fetch the wheels of a lock file into the shared storage, once for the cluster
description:
  - Runs on one node of each kind (Python version and machine). With pip, so that the node's own configuration counts.
  - The folder appears only when it is complete.
options:
  lock: {description: Text of the lock file., type: str, required: true}
  wheel_tag: {description: Kind of node., type: str, required: true}
  path: {description: Folder of all wheels on the shared storage., type: path, required: true}
  user: {description: Account that owns it., type: str, required: true}
  index: {description: Index to ask as well when the configured ones lack a wheel., type: str, default: ""}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Fetch the wheels
  torchrun.cluster.pytorch_wheels:
    lock: "{{ lookup('ansible.builtin.file', 'locks/cpu-2.13.0.txt') }}"
    wheel_tag: cp311-x86_64
    path: /srv/torchrun/wheels
    user: trainer
"""

RETURN = r"""
folder: {description: Where the wheels are., type: str, returned: always}
"""

import shutil
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import venv


def download(lock: str, index: str, scratch: Path) -> Path:
    """Download below `scratch` and return the folder; ask `index` too only where the configured ones lack a wheel."""
    python = venv.make_python(scratch / "venv")
    (scratch / "lock.txt").write_text(f"{lock}\n{venv.UV}\n")
    words = [
        str(python),
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
    ]
    words += ["--dest", str(scratch / "wheels"), "--requirement", str(scratch / "lock.txt")]
    try:
        venv.run_tool(words)
    except venv.ToolError as error:
        if not index or "No matching distribution" not in str(error):
            raise
        venv.run_tool([*words, "--extra-index-url", index])
    return scratch / "wheels"


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "lock": {"type": "str", "required": True},
            "wheel_tag": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "index": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    folder = Path(params["path"]) / venv.key_of(params["lock"], params["wheel_tag"])
    if folder.is_dir() or module.check_mode:
        module.exit_json(changed=not folder.is_dir(), folder=str(folder))
    # On the node's disk: pip verifies and renames a lot, which shared storage is slow at.
    scratch = Path(tempfile.mkdtemp(prefix="torchrun-wheels-", dir="/var/tmp"))
    scratch.chmod(0o755)
    try:
        venv.publish(download(params["lock"], params["index"], scratch), folder, params["user"])
    except venv.ToolError as error:
        module.fail_json(
            msg=f"The wheels could not be fetched on this host ({error}): check its pip configuration and network, "
            "and that an index has this version for its Python."
        )
    except OSError as error:
        module.fail_json(
            msg=f"The wheels could not be stored in {folder.parent} ({error.strerror or error}): check its space."
        )
    finally:
        shutil.rmtree(scratch)
    module.exit_json(changed=True, folder=str(folder))


if __name__ == "__main__":
    main()
