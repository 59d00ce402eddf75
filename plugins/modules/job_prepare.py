#!/usr/bin/python
"""Ansible module: make the run folder of a launch on the shared storage."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_prepare
short_description: Make the run folder of a launch on the shared storage
description:
  - Runs on one member of the job. Writes C(job.yml) and the user's code as it is now, once it is seen that it can
    begin.
  - A run that has finished is moved aside to C(<job>.<launch>); one that stopped or failed is continued in its folder,
    so that the trainer finds its checkpoints.
options:
  run_dir: {description: The run folder., type: path, required: true}
  user: {description: Account that the job runs as., type: str, required: true}
  expected_launch: {description: Launch that the folder had when this one was planned., type: str, default: ""}
  description: {description: What C(job.yml) holds., type: dict, required: true}
  requirements:
    description: Text of the job's requirements. It is kept, readable by O(user) alone, for when the job is resumed.
    type: str
  archive: {description: "Archive of the user's code, on this host; without it C(code) stays as it is.", type: path}
  python: {description: Interpreter of the job., type: str, required: true}
  python_path: {description: "PYTHONPATH of the job, without the code's own folder.", type: str, default: ""}
  kind: {description: What the program is., type: str, choices: [script, module], required: true}
  program: {description: "The script's path within the code, or the module's name.", type: str, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Make the run folder
  torchrun.cluster.job_prepare:
    run_dir: /srv/torchrun/runs/train
    user: trainer
    description: {job: train, launch: 20261201T120000-1a2b}
    python: /opt/torchrun/venv/bin/python
    kind: module
    program: torchrun_trainer
"""

RETURN = r"""
moved_to: {description: Where the finished run went., type: str, returned: always}
continues: {description: Whether an unfinished run of the same program is continued., type: bool, returned: always}
metrics_offset: {description: Byte of C(metrics.jsonl) at which this launch begins., type: int, returned: always}
"""

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import run_folder

CHECK = "/opt/torchrun/libexec/check_program.py"


class ProgramError(Exception):
    """The program cannot begin; the message is one sentence."""


def is_continued(run_dir: Path, program: Any) -> bool:
    """Tell whether the run in the folder is unfinished and of the same program."""
    previous, outcome = run_folder.description_and_outcome(run_dir)
    return bool(previous) and outcome.get("status") != "finished" and previous.get("program") == program


def move_aside(run_dir: Path) -> str:
    """Rename the run folder after its launch and return the new path."""
    launch = run_folder.read_json(run_dir / "job.yml").get("launch", "earlier")
    target = run_dir.with_name(f"{run_dir.name}.{launch}")
    run_dir.rename(target)
    return str(target)


def unpack(archive: IO[bytes], folder: Path) -> list[str]:
    """Unpack the code and return the names of its files."""
    with tarfile.open(fileobj=archive, mode="r:gz") as packed:
        if hasattr(tarfile, "data_filter"):  # refuses whatever would land outside
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(folder)  # noqa: S202 (the archive is the controller's own)
        return [member.name for member in packed.getmembers()]


def check_program(code: Path, params: dict[str, Any]) -> None:
    """Raise ProgramError where the program cannot begin."""
    path = ":".join(filter(None, (str(code), params["python_path"])))
    words = [params["python"], "-B", CHECK, str(code), params["kind"], params["program"]]
    done = subprocess.run(words, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProgramError(f"The program could not be looked at with {params['python']} ({last}): run site.yml.")
    if done.stdout.strip():
        raise ProgramError(done.stdout.strip())


def replace_code(run_dir: Path, fresh: Path, names: list[str]) -> None:
    """Put the new code into the folder of the run. What the job itself has written there stays."""
    code, listing = run_dir / "code", run_dir / ".code.json"
    for name in run_folder.read_json(listing).get("files", []):
        (code / name).unlink(missing_ok=True)
    for name in names:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(fresh / name, code / name)
    run_folder.write_file(listing, json.dumps({"files": names}), 0o640)


def keep_requirements(run_dir: Path, text: str | None) -> None:
    """Write the job's requirements, or remove those of the launch before. Not readable by others: it names indexes."""
    if text:
        run_folder.write_file(run_dir / "requirements.txt", text + "\n", 0o600)
    else:
        (run_dir / "requirements.txt").unlink(missing_ok=True)


def prepare(params: dict[str, Any], archive: IO[bytes] | None) -> dict[str, Any]:
    """Make the folder; return what became of the previous run. Raises ProgramError before anything is changed."""
    run_dir, description = Path(params["run_dir"]), params["description"]
    # On this host's disk, so that a program that is refused leaves no trace on the shared storage.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="torchrun-code-") as scratch:
        fresh = Path(scratch) / "code"
        fresh.mkdir()
        names = unpack(archive, fresh) if archive else []
        check_program(fresh if archive else run_dir / "code", params)
        continues = is_continued(run_dir, description.get("program"))
        moved_to = move_aside(run_dir) if run_dir.exists() and not continues else ""
        for folder in ("code", "nodes", "logs", "checkpoints"):
            (run_dir / folder).mkdir(parents=True, exist_ok=True)
        for host in description["nodes"]:
            (run_dir / "logs" / host["name"]).mkdir(exist_ok=True)
        # The last launch is over: its outcome and its hosts' reports would be taken for those of this one.
        (run_dir / "outcome.json").unlink(missing_ok=True)
        shutil.rmtree(run_dir / "nodes")
        (run_dir / "nodes").mkdir()
        if archive:
            replace_code(run_dir, fresh, names)
    keep_requirements(run_dir, params["requirements"])
    # Metrics of this launch begin here; those of the launches that it continues stand before.
    description = {**description, "metrics_offset": run_folder.size(run_dir / "metrics.jsonl")}
    # JSON is YAML: people read it, and nodes need no parser.
    run_folder.write_file(run_dir / "job.yml", json.dumps(description, indent=2) + "\n", 0o640)
    return {"moved_to": moved_to, "continues": continues, "metrics_offset": description["metrics_offset"]}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "run_dir": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "expected_launch": {"type": "str", "default": ""},
            "description": {"type": "dict", "required": True},
            "requirements": {"type": "str", "no_log": True},
            "archive": {"type": "path"},
            "python": {"type": "str", "required": True},
            "python_path": {"type": "str", "default": ""},
            "kind": {"type": "str", "choices": ["script", "module"], "required": True},
            "program": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=True, moved_to="", continues=False, metrics_offset=0)
    os.umask(0o027)
    try:
        with contextlib.ExitStack() as stack:
            # Root's own file, opened before this process works as the job's account.
            archive = (
                stack.enter_context(Path(module.params["archive"]).open("rb")) if module.params["archive"] else None
            )
            stack.enter_context(run_folder.one_launch_at_a_time())
            stack.enter_context(run_folder.acting_as(module.params["user"]))
            found = run_folder.read_json(Path(module.params["run_dir"]) / "job.yml").get("launch", "")
            result = prepare(module.params, archive) if found == module.params["expected_launch"] else None
    except ProgramError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"The run folder {module.params['run_dir']} cannot be written: {error.strerror or error}. "
            "Check that the shared storage is mounted, has space, and belongs to "
            f"{module.params['user']}; site.yml sets it up."
        )
    if result is None:
        module.fail_json(
            msg=f"Somebody else has just launched this job (launch {found}): the same command again follows it; "
            "or give this one another name with -e job=NAME."
        )
    else:
        module.exit_json(changed=True, **result)


if __name__ == "__main__":
    main()
