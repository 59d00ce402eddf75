"""The rules: what a line of a log means. Read from rules.yml, which explains their keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis.events import KINDS, Line

FILE = Path(__file__).with_name("rules.yml")
STRENGTHS = ("cause", "suspect", "consequence")
REQUIRED = ("name", "pattern", "cause", "cure", "reference")


class RuleError(ValueError):
    """A rule cannot be used; the message is one sentence."""


@dataclass(frozen=True)
class Rule:
    """What a line means, see rules.yml."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    cure: str
    reference: str
    sources: tuple[str, ...] = KINDS
    strength: str = "cause"


@dataclass(frozen=True)
class Match:
    """A line that a rule knows, and what that means there."""

    rule: Rule
    line: Line
    cause: str
    cure: str


def load(path: Path = FILE) -> list[Rule]:
    """Return the rules of a file. Raises RuleError, which names the rule."""
    rules: list[Rule] = []
    for number, entry in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")) or [], start=1):
        name = entry.get("name", f"number {number}") if isinstance(entry, dict) else f"number {number}"
        try:
            rules.append(_rule(entry))
        except (RuleError, re.error) as error:
            raise RuleError(f"The rule {name} of {path.name} cannot be used: {error}.") from error
        if name in [rule.name for rule in rules[:-1]]:
            raise RuleError(f"The rule {name} is there twice in {path.name}.")
    return rules


def _rule(entry: Any) -> Rule:
    if not isinstance(entry, dict):
        raise RuleError("it is no mapping")
    missing = [key for key in REQUIRED if not isinstance(entry.get(key), str) or not entry[key].strip()]
    unknown = sorted(set(entry) - {*REQUIRED, "sources", "strength"})
    sources = tuple(entry.get("sources", KINDS))
    if missing or unknown:
        raise RuleError(f"{missing[0]} is missing" if missing else f"{unknown[0]} is no key of a rule")
    if entry.get("strength", "cause") not in STRENGTHS or not set(sources) <= set(KINDS):
        raise RuleError(f"strength is one of {', '.join(STRENGTHS)}, sources are of {', '.join(KINDS)}")
    pattern = re.compile(entry["pattern"])
    for key in ("cause", "cure"):
        used = set(re.findall(r"{(\w+)}", entry[key])) - {"host", "rank"}
        if not used <= set(pattern.groupindex):
            raise RuleError(
                f"{key} uses {', '.join(sorted(used - set(pattern.groupindex)))}, which pattern does not name"
            )
    return Rule(
        entry["name"],
        pattern,
        entry["cause"],
        entry["cure"],
        entry["reference"],
        sources,
        entry.get("strength", "cause"),
    )


def match(line: Line, rules: Sequence[Rule]) -> Match | None:
    """Return what a line means by the first rule that knows it, or None."""
    for rule in rules:
        found = rule.pattern.search(line.text) if line.kind in rule.sources else None
        if found:
            values = {"host": line.host, "rank": "" if line.rank is None else line.rank}
            values |= {name: value or "" for name, value in found.groupdict().items()}
            return Match(rule, line, _filled(rule.cause, values), _filled(rule.cure, values))
    return None


def _filled(text: str, values: dict[str, Any]) -> str:
    """Fill in names; what is left of brackets around nothing goes."""
    filled = re.sub(r"{(\w+)}", lambda found: str(values[found[1]]), text)
    return re.sub(r"\s*\(\s*\)", "", filled)
