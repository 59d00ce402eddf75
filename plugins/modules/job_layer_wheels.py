#!/usr/bin/python
"""Ansible module: fetch the wheels of a job's own requirements into the shared storage, once for the cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_layer_wheels
short_description: Fetch the wheels of a job's own requirements into the shared storage, once for the cluster
description:
  - Runs on one member. With pip, so that the node's own configuration counts. Only what the nodes' venv lacks is
    fetched; what it has, torch above all, is kept at its version.
  - The folder appears only when it is complete.
options:
  requirements: {description: Text of the requirements file., type: str, required: true}
  python: {description: Interpreter of the nodes' venv., type: path, required: true}
  path: {description: Folder of all wheels on the shared storage., type: path, required: true}
  user: {description: Account that owns it., type: str, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Fetch the wheels
  torchrun.cluster.job_layer_wheels:
    requirements: accelerate==1.16.0
    python: /opt/torchrun/venvs/cp311-x86_64-0123456789ab/bin/python
    path: /srv/torchrun/wheels
    user: trainer
"""

RETURN = r"""
folder: {description: Where the wheels are., type: str, returned: always}
"""

import json
import shutil
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import layer, venv


def fetch(requirements: str, base: Path, scratch: Path) -> Path:
    """Find out what is missing in the base, make its wheels below `scratch`, and return their folder."""
    python = str(venv.make_python(scratch / "venv"))
    layer.stand_on(scratch / "venv", base)
    (scratch / "requirements.txt").write_text(requirements)
    (scratch / "constraints.txt").write_text(layer.constraints(base))
    pip, quiet = [python, "-m", "pip"], ["--quiet", "--disable-pip-version-check", "--no-input"]
    plan = [*pip, "install", *quiet, "--dry-run", "--report", str(scratch / "report.json")]
    venv.run_tool(
        [*plan, "--requirement", str(scratch / "requirements.txt"), "--constraint", str(scratch / "constraints.txt")]
    )
    wanted = layer.to_fetch(json.loads((scratch / "report.json").read_text()))
    wheels = scratch / "wheels"
    wheels.mkdir()
    if wanted:
        # The file's own options (indexes) count here too; its requirements are what `wanted` has already.
        options = [line for line in requirements.splitlines() if line.strip().startswith("--")]
        (scratch / "wanted.txt").write_text("\n".join([*options, *wanted]) + "\n")
        venv.run_tool(
            [*pip, "wheel", *quiet, "--no-deps", "--wheel-dir", str(wheels), "-r", str(scratch / "wanted.txt")]
        )
    return wheels


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "requirements": {"type": "str", "required": True},
            "python": {"type": "path", "required": True},
            "path": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    base = Path(params["python"]).parents[1]
    folder = Path(params["path"]) / layer.key_of(params["requirements"], base)
    if folder.is_dir() or module.check_mode:
        module.exit_json(changed=not folder.is_dir(), folder=str(folder))
    scratch = Path(tempfile.mkdtemp(prefix="torchrun-layer-", dir="/var/tmp"))
    scratch.chmod(0o755)  # the account that owns the shared storage copies from it
    try:
        venv.publish(fetch(params["requirements"], base, scratch), folder, params["user"])
    except venv.ToolError as error:
        module.fail_json(
            msg=f"The packages of requirements could not be fetched on this host ({error}): correct the file (torch "
            "stays at the nodes' version), or this host's pip configuration and network."
        )
    except OSError as error:
        module.fail_json(
            msg=f"The wheels of requirements could not be stored in {folder.parent} ({error.strerror or error}): check "
            "its space."
        )
    finally:
        shutil.rmtree(scratch)
    module.exit_json(changed=True, folder=str(folder))


if __name__ == "__main__":
    main()
