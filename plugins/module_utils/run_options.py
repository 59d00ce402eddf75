"""The checks of run variables that their types cannot make. Pure."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.torchrun.cluster.plugins.module_utils.rank_plan import whole_number
from ansible_collections.torchrun.cluster.plugins.module_utils.verbs import VERBS

HOST_VARIABLES = ("ansible_host", "cluster_addr", "nproc_per_node", "node_rank")
# Those that people set; connection plugins have more, which are let through unless they look like a typo of these.
ANSIBLE_VARIABLES = (
    "ansible_become", "ansible_become_exe", "ansible_become_method", "ansible_become_pass", "ansible_become_password",
    "ansible_become_user", "ansible_connection", "ansible_host", "ansible_pass", "ansible_password", "ansible_port",
    "ansible_private_key_file", "ansible_python_interpreter", "ansible_remote_tmp", "ansible_ssh_args",
    "ansible_ssh_common_args", "ansible_ssh_executable", "ansible_ssh_extra_args", "ansible_ssh_host",
    "ansible_ssh_pass", "ansible_ssh_port", "ansible_ssh_private_key_file", "ansible_ssh_user", "ansible_user",
)  # fmt: skip
JOB_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
SYSTEM_FOLDERS = (
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin", "/sys",
    "/tmp", "/usr", "/var",  # noqa: S108 (refused, not used)
)  # fmt: skip
# For these no job means every job.
JOB_IS_OPTIONAL = ("status", "clean", "preflight")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What torchrun and the guard decide: changing one of these would give a job wrong ranks.
DECIDED = re.compile(
    r"(PET|TORCHRUN|TORCHELASTIC)_\w+|RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
    r"|TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
)


def given(play_vars: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables that may be options: set by -e, or by the playbook that imports one of ours.

    Not the inventory's: a variable `env` or `script` there is the user's own.
    """
    return {**play_vars, **extra}


class OptionError(ValueError):
    """An option is refused; the message is one sentence that names it."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most like `name`, or None."""
    found = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=cutoff)
    return found[0] if found else None


def unknown_option(name: str, verb: str, known: Iterable[str]) -> str | None:
    """Return a sentence for a name given with -e that means nothing to this verb, or None."""
    if name in VERBS[verb] or name in known or name in HOST_VARIABLES or name in ANSIBLE_VARIABLES:
        return None
    if name.startswith("ansible_"):
        candidate = nearest(name, ANSIBLE_VARIABLES, cutoff=0.85)
        return f"`{name}`, given with -e, means nothing to Ansible: did you mean `{candidate}`?" if candidate else None
    others = [f"{other}.yml" for other, options in VERBS.items() if name in options]
    if others:
        return f"`{name}`, given with -e, is no variable of {verb}.yml, but of {', '.join(others)}: leave it out here."
    candidate = nearest(name, [*VERBS[verb], *known, *HOST_VARIABLES])
    hint = (
        f"did you mean `{candidate}`?"
        if candidate
        else f"it knows {', '.join(VERBS[verb]) or 'the variables of the roles'}."
    )
    return f"`{name}`, given with -e, is no variable of {verb}.yml: {hint}"


def unknown_inventory_variable(name: str, host: str, known: Iterable[str], prefixes: Iterable[str]) -> str | None:
    """Return a sentence for an inventory variable that looks like a typo of one of ours, or None.

    Other variables are the user's own. `prefixes` belong to our roles: what begins with one and is unknown is wrong.
    """
    names = [*HOST_VARIABLES, *known]
    if name in names or name.startswith(("ansible_", "_")):
        return None
    candidate = nearest(name, names, cutoff=0.85)
    if candidate:
        return f"The variable `{name}` of {host} in the inventory is unknown: did you mean `{candidate}`?"
    prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
    if prefix:
        return (
            f"The variable `{name}` of {host} in the inventory is unknown to the role {prefix.rstrip('_')}: "
            f"see roles/{prefix.rstrip('_')}/defaults/main.yml, or give it another prefix."
        )
    return None


def _checked_job(job: str) -> None:
    if job and not JOB_NAME.fullmatch(job):
        raise OptionError(f"job is `{job}`: use up to 40 of a-z, 0-9 and hyphens, and no hyphen first.")


def checked_env(env: Mapping[str, Any]) -> dict[str, str]:
    """Return environment variables as strings; raise OptionError for a name or value that cannot be one."""
    checked = {}
    for name, value in env.items():
        if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name):
            raise OptionError(f"env has the name `{name}`, which is no name of an environment variable.")
        if DECIDED.fullmatch(name):
            raise OptionError(f"env sets {name}, which torchrun decides for each process: leave it out.")
        if isinstance(value, (dict, list)) or value is None:
            raise OptionError(f"env gives {name} no plain value: give a string or a number.")
        text = str(value)
        if any(character in text for character in "\n\r\0"):
            raise OptionError(f"env gives {name} a value with a line break: give it in one line.")
        checked[name] = text
    return checked


def parse_env_file(text: str, path: str) -> dict[str, str]:
    """Return the variables of NAME=VALUE lines; quotes around a value are dropped, `export ` and # lines are allowed.

    Raises OptionError, without the text of a line: it may be a secret.
    """
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip().removeprefix("export ").lstrip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals or not VARIABLE_NAME.fullmatch(name.strip()):
            raise OptionError(f"env_file {path}: line {number} is not NAME=VALUE: correct it.")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name.strip()] = value
    return checked_env(found)


def checked_shared_path(path: str) -> str:
    """Return the path of the shared storage; raise OptionError for one that cannot be a folder of ours."""
    normal = os.path.normpath(path)
    if not normal.startswith("/"):
        raise OptionError(f"shared_storage_path is `{path}`: give an absolute path, such as /srv/torchrun.")
    if normal in SYSTEM_FOLDERS or normal.startswith(("/dev/", "/proc/", "/sys/", "/run/")):
        raise OptionError(
            f"shared_storage_path is `{path}`, which belongs to the system: give a folder of its own, such as "
            "/srv/torchrun."
        )
    return normal


def _checked_file(name: str, given: str, directory: Path, what: str) -> Path:
    """Return the path of a text file on this machine that an option names."""
    path = directory / Path(given).expanduser()
    if not path.exists():
        raise OptionError(f"{name} is `{given}`, but there is no file {path} on this machine: correct the path.")
    if not path.is_file():
        raise OptionError(f"{name} is `{given}`, but {path} is no file: give {what}.")
    try:
        path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{name} is `{given}`, but {path} cannot be read as text ({error}).") from error
    return path.resolve()


def _checked_workdir(given: str, directory: Path) -> Path:
    path = (directory / Path(given).expanduser()).resolve()
    if not path.is_dir():
        raise OptionError(f"workdir is `{given}`, but there is no folder {path} on this machine: correct the path.")
    if str(path) in SYSTEM_FOLDERS or path == Path.home():
        raise OptionError(f"workdir is `{given}`, which is no project's folder: give the one that holds your code.")
    return path


def _check_requirements(path: Path) -> None:
    """Refuse lines that mean something on this machine only, and passwords, which the nodes would show."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if re.search(r"://[^/\s]+@", line):
            raise OptionError(
                f"requirements {path}: line {number} has a password or token in an address: put it into the pip "
                "configuration of the nodes, or use a .netrc file there."
            )
        if re.match(r"\s*(-[rce]\b|--(requirement|constraint|editable)\b|[./~]|file:)", line):
            raise OptionError(
                f"requirements {path}: line {number} ({line.strip()}) names files of this machine, which the nodes do "
                "not have: give packages by name."
            )


def _checked_program(result: dict[str, Any], directory: Path) -> None:
    for name in ("script", "module"):
        if result.get(name) == "":
            raise OptionError(f"{name} is empty: name the program, or leave {name} out to run the packaged trainer.")
    for name in ("workdir", "env_file", "requirements"):
        if result.get(name) == "":
            raise OptionError(f"{name} is empty: give a path, or leave {name} out.")
    if result.get("script") and result.get("module"):
        raise OptionError("script and module exclude one another: give one of them.")
    project = _checked_workdir(result["workdir"], directory) if result.get("workdir") else None
    if project:
        result["workdir"] = str(project)
    if result.get("script"):
        script = _checked_file("script", result["script"], project or directory, "the Python file that torchrun runs")
        if project and project not in script.parents:
            raise OptionError(
                f"script is `{result['script']}`, which is not within workdir ({project}): give a path within it."
            )
        result["script"] = str(script)
    if result.get("requirements"):
        path = _checked_file("requirements", result["requirements"], directory, "a requirements file of pip")
        _check_requirements(path)
        result["requirements"] = str(path)
    if result.get("module") and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", result["module"]):
        raise OptionError(f"module is `{result['module']}`, which is no dotted name of a Python module.")


def checked(verb: str, options: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the options of a verb after the checks that types cannot make; relative paths are within `directory`."""
    result = dict(options)
    _checked_job(result.get("job") or "")
    if "job" in result and verb not in JOB_IS_OPTIONAL and not result["job"]:
        raise OptionError("job is empty: give the name of a job, or leave job out for the job train.")
    if verb == "logs" and not 1 <= result["lines"] <= 100_000:
        raise OptionError(f"lines is {result['lines']}: give a whole number from 1 to 100000.")
    if verb == "clean":
        _check_keep(result["keep"])
    if verb == "train":
        _checked_program(result, directory)
        result = launchable(result)
    if result.get("env_file"):
        result["env_file"] = str(_checked_file("env_file", result["env_file"], directory, "a file of NAME=VALUE lines"))
    if "env" in result:
        result["env"] = checked_env(result["env"])
    return result


def _check_keep(keep: int | None) -> None:
    if keep is None:
        raise OptionError("keep is missing: say with -e keep=N how many runs of each job stay, the newest ones.")
    if keep < 0:
        raise OptionError(f"keep is {keep}: give a whole number from 0.")


def launchable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a launch after the checks of those that depend on one another."""
    result, static = dict(options), options["rdzv_backend"] == "static"
    port, restarts, timeout = (result.get(name) for name in ("master_port", "max_restarts", "hang_timeout"))
    if port is not None and not 1024 <= port <= 65535:
        raise OptionError(f"master_port is {port}: give a port from 1024 to 65535.")
    if restarts is None:
        restarts = 0 if static else 3
    if timeout and not 10 <= timeout <= 86400:
        raise OptionError(f"hang_timeout is {timeout}: give 0, or seconds from 10 to 86400.")
    if restarts < 0:
        raise OptionError(f"max_restarts is {restarts}: give a whole number from 0.")
    if restarts and static:
        raise OptionError(
            f"max_restarts is {restarts}, but with rdzv_backend static the other nodes would not learn of a restart: "
            "give 0, or use c10d."
        )
    if static and ":" in str(result.get("nnodes")):
        raise OptionError(f"nnodes is `{result['nnodes']}`, but rdzv_backend static knows no elastic jobs: use c10d.")
    if result.get("nproc_per_node") not in (None, "auto") and (whole_number(result["nproc_per_node"]) or 0) < 1:
        raise OptionError(f"nproc_per_node is `{result['nproc_per_node']}`: give auto, or a whole number from 1.")
    return {**result, "max_restarts": restarts}
