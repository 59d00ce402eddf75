#!/usr/bin/python
"""Ansible module: the venv of a lock file, installed from the shared wheels and proved by importing torch."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pytorch_venv
short_description: The venv of a lock file, installed from the shared wheels and proved by importing torch
description:
  - Each lock file has a venv of its own, so a running job keeps the one that it was launched with.
  - The link to the venv in use is switched only after torch could be imported.
options:
  lock: {description: Text of the lock file., type: str, required: true}
  wheel_tag: {description: Kind of node., type: str, required: true}
  wheels: {description: Folder of all wheels on the shared storage., type: path, required: true}
  path: {description: Folder of all venvs., type: path, required: true}
  link: {description: The link to the venv in use., type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Install the venv
  torchrun.cluster.pytorch_venv:
    lock: "{{ lookup('ansible.builtin.file', 'locks/cpu-2.13.0.txt') }}"
    wheel_tag: cp311-x86_64
    wheels: /srv/torchrun/wheels
    path: /opt/torchrun/venvs
    link: /opt/torchrun/venv
"""

RETURN = r"""
torch: {description: "What torch says of itself: version, cuda, git.", type: dict, returned: always}
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import venv

PROOF = (
    "import json, torch; "
    "print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda, 'git': torch.version.git_version}))"
)


def install(lock: str, wheels: Path, target: Path) -> dict[str, Any]:
    """Make the venv and return what torch says of itself. A folder without its mark is left over: begin anew."""
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    (target / "lock.txt").write_text(lock)
    with venv.uv_of(wheels, target) as uv:
        uv("venv", "--allow-existing", "--python", "/usr/bin/python3", str(target))
        where = ["--no-index", "--no-deps", "--find-links", str(wheels), "--python", str(target / "bin/python")]
        uv("pip", "install", "--compile-bytecode", *where, "--requirement", str(target / "lock.txt"))
    said = json.loads(venv.run_tool([str(target / "bin/python"), "-c", PROOF]))
    (target / "torch.json").write_text(json.dumps(said))
    return dict(said)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "lock": {"type": "str", "required": True},
            "wheel_tag": {"type": "str", "required": True},
            "wheels": {"type": "path", "required": True},
            "path": {"type": "path", "required": True},
            "link": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    key = venv.key_of(params["lock"], params["wheel_tag"])
    target, mark = Path(params["path"]) / key, Path(params["path"]) / key / "torch.json"
    link = Path(params["link"])
    complete = mark.exists()
    if module.check_mode:
        said = json.loads(mark.read_text()) if complete else {}
        linked = venv.points_to(link, target)
        module.exit_json(changed=not (complete and linked), torch=said)
    os.umask(0o022)
    try:
        said = (
            json.loads(mark.read_text()) if complete else install(params["lock"], Path(params["wheels"]) / key, target)
        )
        switched = venv.switch(link, target)
    except venv.ToolError as error:
        module.fail_json(
            msg=f"PyTorch could not be installed in {target} ({error}): run site.yml again after mending that."
        )
    except (OSError, ValueError) as error:
        module.fail_json(
            msg=f"PyTorch could not be installed in {target} ({error}): check the disk's space and the wheels in "
            f"{params['wheels']}/{key}, then run site.yml again."
        )
    module.exit_json(changed=switched or not complete, torch=said)


if __name__ == "__main__":
    main()
