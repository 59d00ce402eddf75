#!/usr/bin/python
"""Ansible module: remove runs from the shared storage, and what jobs without a run have left on this host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_clean
short_description: Remove runs from the shared storage, and what jobs without a run have left on this host
description:
  - Removes each of O(runs) that is still the one it was and does not run here; it is renamed first, and what an
    interrupted removal has left is removed too.
  - Removes the environment files of jobs that have no run folder, and layers of packages that none of them names, with
    their wheels on the shared storage.
options:
  on_storage: {description: Whether this host does what concerns the shared storage., type: bool, default: false}
  runs: {description: "Runs to remove: C(folder) and C(launch) of each.", type: list, elements: dict, default: []}
  jobs: {description: Jobs that keep a run folder., type: list, elements: str, required: true}
  gone: {description: "Jobs that lose theirs, here or on another host.", type: list, elements: str, default: []}
  job: {description: Only what belongs to this job; to every job when empty., type: str, default: ""}
  user: {description: Account that jobs run as., type: str, required: true}
  shared_path: {description: The shared storage., type: path, required: true}
author: [The ansible-torchrun authors]
"""

EXAMPLES = r"""
- name: Remove an old run
  torchrun.cluster.job_clean:
    on_storage: true
    runs: [{folder: train.20261201T120000-1a2b, launch: 20261201T120000-1a2b}]
    jobs: [train]
    user: trainer
    shared_path: /srv/torchrun
"""

RETURN = r"""
removed: {description: C(path) and C(bytes) of all that went or, in check mode, would go., type: list, returned: always}
"""

import os
import shutil
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.torchrun.cluster.plugins.module_utils import layer, run_folder, run_history

# A run on its way out: an interrupted removal leaves nothing that looks like a run.
REMOVED = ".removed-"
# A layer that is younger may be that of a launch which has not written its environment file yet.
YOUNG_SECONDS = 3600.0


def bytes_of(path: Path) -> int:
    """Return the size of a file, or of all files below a folder."""
    files = [Path(at) / name for at, _, names in os.walk(path) for name in names]
    return (
        sum(run_folder.size(file) for file in files if not file.is_symlink()) if path.is_dir() else path.stat().st_size
    )


def remove(folder: Path) -> None:
    """Remove a run folder; job.yml goes last, so that to the end the folder says whose it is."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == "job.yml"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.rmdir()


def set_aside(
    runs: Path, wanted: list[dict[str, str]], running: dict[str, dict[str, str]], check: bool
) -> list[tuple[Path, Path]]:
    """Rename the runs that go, and find those whose removal was interrupted; return (its name, where it is) of each."""
    found = []
    for left in sorted(runs.glob(f"{REMOVED}*")):
        if (left / "job.yml").exists() or not any(left.iterdir()):
            found.append((left, left))
    for run in wanted:
        folder = runs / run["folder"]
        entry = run_history.entry_of(folder)
        if not entry or entry["launch"] != run["launch"]:
            continue
        if running.get(entry["job"], {}).get("TORCHRUN_LAUNCH") == run["launch"]:
            continue
        aside = folder if check else folder.rename(folder.with_name(f"{REMOVED}{folder.name}"))
        found.append((folder, aside))
    return found


def remove_runs(found: list[tuple[Path, Path]], check: bool) -> list[dict[str, Any]]:
    """Remove what was set aside; return what went."""
    removed = []
    for name, folder in found:
        removed.append({"path": str(name), "bytes": bytes_of(folder)})
        if not check:
            remove(folder)
    return removed


def has_run(job: str, params: dict[str, Any]) -> bool:
    """Tell whether a job has a run folder, or will have after this task: as the controller and as this host sees it."""
    runs = Path(params["shared_path"]) / "runs"
    with run_folder.acting_as(params["user"]):
        return job in params["jobs"] or not runs.is_dir() or (job not in params["gone"] and (runs / job).exists())


def clean_wheels(shared: Path, check: bool) -> list[dict[str, Any]]:
    """Remove the wheels of layers that this host has no more; return what went. Only a launch needs them."""
    have = {path.name for path in layer.LAYERS.glob("layer-*")}
    paths = [path for path in sorted(shared.glob("wheels/layer-*")) if path.name not in have and is_old(path)]
    removed = [{"path": str(path), "bytes": bytes_of(path)} for path in paths]
    for path in paths if not check else []:
        shutil.rmtree(path)
    return removed


def is_old(path: Path) -> bool:
    """Tell whether no launch can be about to use something."""
    return time.time() - path.stat().st_mtime > YOUNG_SECONDS


def clean_host(params: dict[str, Any], check: bool) -> list[dict[str, Any]]:
    """Remove what jobs without a run have left on this host; return what went."""
    names = sorted(path.stem for path in run_folder.JOBS_DIR.glob("*.env"))
    states = run_folder.unit_states(names)
    idle = [
        name
        for name in names
        if states[name].get("ActiveState") in ("inactive", "failed") and not run_folder.is_enabled(name)
    ]
    paths = [
        run_folder.JOBS_DIR / f"{name}.env"
        for name in idle
        if params["job"] in ("", name) and not has_run(name, params)
    ]
    left = set(names) - {path.stem for path in paths}
    used = {run_folder.read_environment_file(name).get("TORCHRUN_PYTHON", "") for name in left}
    paths += [
        path for path in sorted(layer.LAYERS.glob("layer-*")) if str(path / "bin/python") not in used and is_old(path)
    ]
    removed = [{"path": str(path), "bytes": bytes_of(path)} for path in paths]
    for path in paths if not check else []:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return removed


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "on_storage": {"type": "bool", "default": False},
            "runs": {"type": "list", "elements": "dict", "default": []},
            "jobs": {"type": "list", "elements": "str", "required": True},
            "gone": {"type": "list", "elements": "str", "default": []},
            "job": {"type": "str", "default": ""},
            "user": {"type": "str", "required": True},
            "shared_path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    removed: list[dict[str, Any]] = []
    runs = Path(params["shared_path"]) / "runs"
    found: list[tuple[Path, Path]] = []
    try:
        # No launch of this host begins meanwhile in a folder that goes; removing it may take long, and nobody waits.
        with run_folder.one_launch_at_a_time():
            if params["on_storage"]:
                running = run_folder.jobs_on_host()
                with run_folder.acting_as(params["user"]):
                    found = set_aside(runs, params["runs"], running, module.check_mode)
            removed += clean_host(params, module.check_mode)
            if params["on_storage"]:
                with run_folder.acting_as(params["user"]):
                    removed += clean_wheels(Path(params["shared_path"]), module.check_mode)
        if found:
            with run_folder.acting_as(params["user"]):
                removed = remove_runs(found, module.check_mode) + removed
    except KeyError:
        module.exit_json(changed=False, removed=[])  # no such account: this host is not provisioned, and has no job
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename or params['shared_path']} cannot be removed ({error.strerror or error}): correct its "
            f"owner, which should be {params['user']}, or remove it by hand."
        )
    module.exit_json(changed=bool(removed), removed=removed)


if __name__ == "__main__":
    main()
