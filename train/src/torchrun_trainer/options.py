"""The config of a run from defaults, a YAML file and the command line, each overriding the one before."""

from __future__ import annotations

import difflib
import io
import re
import typing
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml

from torchrun_trainer.config import Config, dashed
from torchrun_trainer.errors import TrainerError, write_whole


@dataclass(frozen=True)
class ConfigFile:
    """Where further options come from."""

    config: str = ""
    """YAML file of options, named as here with _ for -; the command line overrides it."""


Options = Annotated[tuple[ConfigFile, Config], tyro.conf.OmitArgPrefixes]


def fits(value: Any, wanted: Any) -> bool:
    """Return whether a value from YAML is of the type of a field."""
    if typing.get_origin(wanted) is Literal:
        return value in typing.get_args(wanted)
    if wanted is float:
        try:
            return not isinstance(value, bool) and isinstance(float(value), float)  # YAML reads 3e-4 as text
        except (TypeError, ValueError):
            return False
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)


def name_of(wanted: Any) -> str:
    """Return a type in words."""
    if typing.get_origin(wanted) is Literal:
        return "one of " + ", ".join(typing.get_args(wanted))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[wanted]


def from_mapping(values: Mapping[str, Any], where: str) -> Config:
    """Return the config with these values. Raises TrainerError that names the key, and the nearest one that exists."""
    types = typing.get_type_hints(Config)
    names = [field.name for field in fields(Config)]
    for key, value in values.items():
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(names)}."
            raise TrainerError(f"{where} has the option {key}, which is unknown: {hint}")
        if not fits(value, types[key]):
            raise TrainerError(f"{where} gives {key} the value {value!r}: give {name_of(types[key])}.")
    return Config(**{key: float(value) if types[key] is float else value for key, value in values.items()})


class Loader(yaml.SafeLoader):
    """YAML without types of Python, and without a name given twice, of which the first would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping. Raises TwiceError."""
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name in names:
            if names.count(name) > 1:
                raise TwiceError(name)
        return super().construct_mapping(node, deep)


class TwiceError(Exception):
    """A name that is given twice."""


def from_file(path: Path) -> Config:
    """Return the config of a YAML file. Raises TrainerError."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise TrainerError(f"--config {path} cannot be read: {error.strerror or error}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        place = getattr(error, "problem_mark", None)
        line = f" at line {place.line + 1}" if place else ""
        raise TrainerError(f"--config {path} is no valid YAML{line}: mend it.") from error
    except TwiceError as error:
        raise TrainerError(f"--config {path} gives {error} twice: keep one of them.") from error
    if values is None:
        return Config()
    if not isinstance(values, dict):
        raise TrainerError(f"--config {path} holds no options: give lines of name: value.")
    return from_mapping(values, f"--config {path}")


def parse(arguments: Sequence[str] | None = None) -> Config:
    """Return the config of the command line. Raises TrainerError for an option that is unknown or has a wrong value."""
    file, config = read_command_line(arguments, None)
    if not file.config:
        return config
    return read_command_line(arguments, (file, from_file(Path(file.config).expanduser())))[1]


def read_command_line(
    arguments: Sequence[str] | None, defaults: tuple[ConfigFile, Config] | None
) -> tuple[ConfigFile, Config]:
    """Let tyro parse a command line; what it says of a wrong one, in a box, becomes a sentence."""
    said = io.StringIO()
    given: Any = {} if defaults is None else {"default": defaults}
    try:
        with redirect_stderr(said):
            return tyro.cli(Options, prog="torchrun_trainer", args=arguments, **given)
    except SystemExit as end:
        if not end.code:
            raise  # --help
        raise TrainerError(sentence_of(said.getvalue())) from end


def sentence_of(box: str) -> str:
    """Return the text of a box in one line: what is wrong and, of an unknown option, the nearest that there is."""
    lines = box.splitlines()[1:]  # the first is a title, which says less
    # Where the locale is not UTF-8, the box is drawn with minus signs.
    words = " ".join(re.sub(r"[\u2500-\u257f]+|-{3,}|\x1b\[[0-9;]*m", " ", " ".join(lines)).split())
    what = re.split(r" Argument helptext:| Arguments similar to| Perhaps you meant:| For full helptext", words)[0]
    unknown = re.search(r"Unrecognized options: --(?:no-)?([\w-]+)", what)
    names = [dashed(field.name) for field in fields(Config)] + ["config"]
    near = difflib.get_close_matches(unknown[1], names, n=1) if unknown else []
    return f"{what.rstrip('.')}{f': did you mean --{near[0]}?' if near else '.'} --help lists all options."


def save(folder: Path, config: Config) -> None:
    """Write the resolved config beside the run's other files. Raises TrainerError."""
    text = "# The options of this run's last start; give them again with --config.\n"
    write_whole(folder / "config.yaml", text + yaml.safe_dump(asdict(config), sort_keys=False))
