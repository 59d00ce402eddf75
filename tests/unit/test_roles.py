"""Every role has the same shape, and its argument specs say the same as its defaults."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = Path(__file__).parents[2] / "roles"


def shape_problems(role: Path) -> list[str]:
    """Return what is wrong with a role's shape."""
    problems = [
        f"{role.name} has no {name}"
        for name in ("defaults/main.yml", "meta/argument_specs.yml", "tasks/main.yml", "README.md")
        if not (role / name).is_file()
    ]
    if problems:
        return problems
    text = (role / "defaults/main.yml").read_text()
    defaults: dict[str, Any] = yaml.safe_load(text) or {}
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    options = specs.get("options") or {}
    problems += [f"{name} is in only one of defaults and specs" for name in sorted(set(defaults) ^ set(options))]
    for name in sorted(set(defaults) & set(options)):
        if options[name].get("default") != defaults[name]:
            problems.append(f"{name} has another default in the specs")
        if not options[name].get("description"):
            problems.append(f"{name} has no description")
    problems += [f"{name} lacks the prefix of {role.name}" for name in defaults if not name.startswith(f"{role.name}_")]
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line[:1].isalpha() and not lines[number - 1].startswith("#"):
            problems.append(f"{line.split(':')[0]} has no comment above it")
    return problems


@pytest.mark.parametrize("role", sorted(path.name for path in ROLES.iterdir() if path.is_dir()))
def test_a_role_has_the_shape(role: str):
    assert shape_problems(ROLES / role) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("defaults/main.yml", "base_user: trainer", "base_user: other", "base_user has another default"),
        ("defaults/main.yml", "base_user: trainer", "user: trainer", "user is in only one"),
        ("defaults/main.yml", "# Account that jobs run as.\n", "", "base_user has no comment"),
        ("meta/argument_specs.yml", "      base_user:", "      base_usr:", "base_usr is in only one"),
    ],
)
def test_a_role_out_of_shape_is_noticed(tmp_path: Path, file: str, old: str, new: str, problem: str):
    role = Path(shutil.copytree(ROLES / "base", tmp_path / "base"))
    text = (role / file).read_text()
    assert old in text
    (role / file).write_text(text.replace(old, new))
    assert any(found.startswith(problem) for found in shape_problems(role)), shape_problems(role)
