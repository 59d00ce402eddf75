"""The variables of all roles, read from their argument specs and defaults, and a check of values against them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

SPEC_KEYS = ("type", "elements", "choices", "options")


@lru_cache
def load(roles: Path) -> dict[str, dict[str, Any]]:
    """Return the options of each role's main entry point, by role name. `default` comes from the specs."""
    specs = {}
    for path in sorted(roles.glob("*/meta/argument_specs.yml")):
        content = yaml.safe_load(path.read_text()) or {}
        specs[path.parts[-3]] = content["argument_specs"]["main"].get("options") or {}
    return specs


def variables(roles: Path) -> dict[str, dict[str, Any]]:
    """Return the options of all roles together, by variable name."""
    return {name: option for options in load(roles).values() for name, option in options.items()}


def default(roles: Path, name: str) -> Any:
    """Return the default of a role's variable."""
    return variables(roles)[name].get("default")


def _plain(option: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: option[key] for key in SPEC_KEYS if key in option}
    if "options" in kept:
        kept["options"] = {
            name: {**_plain(inner), "required": bool(inner.get("required"))} for name, inner in kept["options"].items()
        }
    return kept


def converted(spec: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values converted to the types of the spec, with defaults, and a sentence for each that cannot be."""
    arguments = {name: {**_plain(option), "default": option.get("default")} for name, option in spec.items()}
    result: dict[str, Any] = {}
    problems = []
    for name, argument in arguments.items():
        given = {name: values[name]} if values.get(name) is not None else {}
        outcome = ArgumentSpecValidator({name: argument}).validate(given)
        if outcome.error_messages:
            problems.append(f"{name} is `{values[name]}`, but must be {expected(spec[name])}.")
        else:
            result[name] = outcome.validated_parameters[name]
    return result, problems


def expected(option: Mapping[str, Any]) -> str:
    """Return what a variable must be, in words."""
    if option.get("choices"):
        return "one of " + ", ".join(str(choice) for choice in option["choices"])
    words = {
        "bool": "true or false",
        "int": "a whole number",
        "float": "a number",
        "list": "a list",
        "dict": "a dictionary",
        "str": "a string",
        "path": "a path",
    }
    kind = words.get(option.get("type", "str"), str(option.get("type")))
    return f"{kind} of {option['elements']}" if option.get("elements") else kind
