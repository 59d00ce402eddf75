#!/usr/bin/python
"""Ansible module: a job's own packages on this host, as a venv on top of that of the nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_layer
short_description: A job's own packages on this host, as a venv on top of that of the nodes
description:
  - Installed from the shared wheels. Jobs with the same requirements share a layer; a running job keeps its own.
options:
  requirements: {description: Text of the requirements file., type: str, required: true}
  python: {description: Interpreter of the nodes' venv., type: path, required: true}
  wheels: {description: Folder of all wheels on the shared storage., type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Install the layer
  torchrun.cluster.job_layer:
    requirements: accelerate==1.16.0
    python: /opt/torchrun/venvs/cp311-x86_64-0123456789ab/bin/python
    wheels: /srv/torchrun/wheels
"""

RETURN = r"""
python: {description: Interpreter of the layer., type: str, returned: always}
"""

import os
import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import layer, venv


def install(base: Path, wheels: Path, target: Path) -> None:
    """Make the layer. A folder without its mark is left over: begin anew."""
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    with venv.uv_of(wheels / base.name, target) as uv:
        uv("venv", "--allow-existing", "--python", "/usr/bin/python3", str(target))
        found = sorted(str(path) for path in (wheels / target.name).glob("*.whl"))
        if found:
            python = str(target / "bin/python")
            uv("pip", "install", "--no-index", "--no-deps", "--compile-bytecode", "--python", python, *found)
    layer.stand_on(target, base)
    layer.complete(target, base)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "requirements": {"type": "str", "required": True},
            "python": {"type": "path", "required": True},
            "wheels": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    base = Path(params["python"]).parents[1]
    target = layer.LAYERS / layer.key_of(params["requirements"], base)
    python = str(target / "bin/python")
    if layer.is_complete(target) or module.check_mode:
        module.exit_json(changed=not layer.is_complete(target), python=python)
    os.umask(0o022)
    try:
        install(base, Path(params["wheels"]), target)
    except (venv.ToolError, OSError, ValueError) as error:
        module.fail_json(
            msg=f"The packages of requirements could not be installed in {target} ({error}): check the disk's space, "
            "then launch again."
        )
    module.exit_json(changed=True, python=python)


if __name__ == "__main__":
    main()
