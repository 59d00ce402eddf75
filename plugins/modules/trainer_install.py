#!/usr/bin/python
"""Ansible module: unpack the packaged trainer, beside earlier ones, and switch the link to it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trainer_install
short_description: Unpack the packaged trainer, beside earlier ones, and switch the link to it
description:
  - A running job keeps the one that it was launched with.
options:
  content: {description: The wheel in base64., type: str, required: true}
  digest: {description: What names it., type: str, required: true}
  path: {description: Folder of all trainers., type: path, required: true}
  python: {description: Interpreter that compiles it., type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Install the trainer
  torchrun.cluster.trainer_install:
    content: "{{ wheel.content }}"
    digest: "{{ wheel.digest }}"
    path: /opt/torchrun/trainer
    python: /opt/torchrun/venv/bin/python
"""

RETURN = r""" # """

import base64
import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import venv


def unpack(content: bytes, python: str, target: Path) -> None:
    """Unpack the wheel (it is pure Python: that is all of installing it), compile it, and rename it into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=".new."))
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(temporary)
        # By checksum of the source: every file of the wheel has the same time.
        words = [python, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", "-s", str(temporary)]
        venv.run_tool([*words, "-p", str(target), str(temporary)])
        temporary.chmod(0o755)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary)
        raise


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "content": {"type": "str", "required": True, "no_log": False},
            "digest": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "python": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    target = Path(params["path"]) / params["digest"]
    link = Path(params["path"]) / "current"
    linked = venv.points_to(link, target)
    changed = not (target.is_dir() and linked)
    if not changed or module.check_mode:
        module.exit_json(changed=changed)
    os.umask(0o022)
    try:
        if not target.is_dir():
            unpack(base64.b64decode(params["content"]), params["python"], target)
        venv.switch(link, target)
    except (OSError, venv.ToolError) as error:
        module.fail_json(
            msg=f"The trainer could not be installed in {target} ({error}): mend that and run site.yml again."
        )
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
