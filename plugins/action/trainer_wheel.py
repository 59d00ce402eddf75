"""Action plugin, on the controller: build the packaged trainer's wheel."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

DOCUMENTATION = r"""
module: trainer_wheel
short_description: Build the packaged trainer's wheel
description:
  - On the controller. The same source makes the same bytes, so its digest tells whether a node has it.
options:
  source: {description: Folder of the package., type: path, required: true}
author: [The ansible-torchrun authors]
"""

# The start of the zip format's calendar: file times would make every build another.
EPOCH = "315532800"


class ActionModule(ActionBase):
    """Call the package's own build backend."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `content` (base64) and `digest` of the wheel."""
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec({"source": {"type": "path", "required": True}})
        source = Path(arguments["source"])
        try:
            content = build(source)
        except ImportError:
            return {"failed": True, "msg": "flit_core is not installed: install requirements.txt on this machine."}
        except (OSError, ValueError) as error:
            return {"failed": True, "msg": f"The trainer in {source} could not be built: {error}."}
        return {
            "changed": False,
            "content": base64.b64encode(content).decode(),
            "digest": hashlib.sha256(content).hexdigest()[:12],
        }


def build(source: Path) -> bytes:
    """Return the bytes of the wheel of the package in `source`."""
    from flit_core import buildapi  # noqa: PLC0415 (a missing install step gets a sentence)

    before = Path.cwd()
    os.environ["SOURCE_DATE_EPOCH"] = EPOCH
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(source)  # a build backend builds the working directory
        try:
            return (Path(folder) / buildapi.build_wheel(folder)).read_bytes()
        finally:
            os.chdir(before)
