"""A user's own model or data, named as package.module:function."""

from __future__ import annotations

import importlib
from typing import Any

from torchrun_trainer.errors import TrainerError


def call(option: str, path: str, *arguments: Any) -> Any:
    """Import and call package.module:function. Raises TrainerError when it is not there; its own errors pass."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise TrainerError(
                f"--{option} {path}: there is no module {error.name} here: add its folder to PYTHONPATH."
            ) from error
        raise  # something that the module itself imports
    function = getattr(module, name, None)
    if not callable(function):
        raise TrainerError(f"--{option} {path}: {module_name} has no function {name}.")
    return function(*arguments)
