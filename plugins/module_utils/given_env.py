"""The user's environment variables, read where they are needed: as a fact they would be printed with -v."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.torchrun.cluster.plugins.module_utils import role_specs, run_options


def options_given(action: ActionBase) -> dict[str, Any]:
    """Return the variables that may be options, not yet templated: of -e and of the playbook that imports ours."""
    return run_options.given(action._task._parent._play.vars, load_extra_vars(action._loader))


def environment_of(action: ActionBase, earlier: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of `env_file` and `env` of a launch; where both have one, that of `env`.

    `earlier` are those that a job which is resumed had: what is given now wins over them.

    Raises OptionError for a file that is not as it should be; `validate` has met it first.
    """
    wanted = {name: run_options.VERBS["train"][name] for name in ("env", "env_file")}
    given = {name: action._templar.template(value) for name, value in options_given(action).items() if name in wanted}
    options, _ = role_specs.converted(wanted, given)
    env = run_options.checked_env(options["env"])
    return {**(earlier or {}), **from_file(action, options.get("env_file")), **env}


def earlier_of(variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that the job had, as job_secrets has brought them from its hosts; none for a new job."""
    if not variables["launch"].get("resumes"):
        return {}
    answers = (variables["hostvars"][host].get("__secrets") or {} for host in variables["groups"]["nodes"])
    found: Mapping[str, Any] = next((answer["env"] for answer in answers if answer.get("env") is not None), {})
    return {str(name): str(value) for name, value in found.items()}


def from_file(action: ActionBase, name: str | None) -> dict[str, str]:
    """Return the variables of an env_file, decrypted with the run's Vault secrets where it is encrypted."""
    if not name:
        return {}
    path = str(Path.cwd() / Path(name).expanduser())
    try:
        text = action._loader.get_text_file_contents(path)
    except AnsibleError as error:
        reason = str(error.message).splitlines()[0]
        raise run_options.OptionError(f"env_file {path} cannot be read ({reason}): give its Vault password.") from error
    return run_options.parse_env_file(text, path)
