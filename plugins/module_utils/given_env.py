"""The user's environment variables, read where they are needed: as a fact they would be printed with -v."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.torchrun.cluster.plugins.module_utils import role_specs, run_options


def options_given(action: ActionBase) -> dict[str, Any]:
    """Return the variables that may be options, not yet templated: of -e and of the playbook that imports ours."""
    return run_options.given(action._task._parent._play.vars, load_extra_vars(action._loader))


def environment_of(action: ActionBase) -> dict[str, str]:
    """Return the option `env` of a launch; `validate` has checked it."""
    env = action._templar.template(options_given(action).get("env"))
    options, _ = role_specs.converted({"env": run_options.VERBS["train"]["env"]}, {"env": env})
    return run_options.checked_env(options["env"])
