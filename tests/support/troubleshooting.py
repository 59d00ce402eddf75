"""The page docs/troubleshooting.md, from the rules of the diagnosis and the faults that tests make on real nodes.

Run it to write the page anew: PYTHONPATH=collections:tests/support .venv/bin/python -m troubleshooting
"""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis import rules
from faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
LOGS = "tests/unit/diagnosis/logs"
HEAD = """# From symptom to cause

This page is written by `tests/support/troubleshooting.py` from the rules and from the faults that the tests make.

`ansible-playbook playbooks/preflight.yml` examines the hosts before a job, and `train.yml` does so by itself.
`ansible-playbook playbooks/diagnose.yml -e job=NAME` finds the first cause of a failure over all hosts, as a failed
`train.yml` does by itself; with `-e logs=DIR` it reads a folder of logs of any launcher, each host's in a folder or
file of its name.

What needs GPUs, InfiniBand or NVSwitch was tried on logs and made-up reports alone, never on such hardware.

The four errors of every guide:

| what is printed | what it is |
| --- | --- |
| `NCCL error: unhandled cuda error` | a driver that does not fit: preflight, column gpus; rule nccl-cuda-failure |
| `Address already in use` | preflight, column ports; a launch without `master_port` takes a free one |
| `Connection refused` | preflight, column reach: it names the pair and the direction |
| `Timed out initializing process group` | a member that does not come: preflight, columns answers and reach |

## What preflight finds
Each line is a fault that `tests/e2e/test_preflight.py` makes on real nodes.

| fault | column | what is said |
| --- | --- | --- |
"""
RULES = f"""
## What lines of logs mean
Each rule is tried on the log of its name in `{LOGS}`. One more needs an entry in
`plugins/module_utils/diagnosis/rules.yml` and its log. A *suspect* is named only where nothing explains the failure by
itself; a *consequence* is never the cause.

| rule | cause | what to do |
| --- | --- | --- |
"""


def cell(text: str) -> str:
    """Return a text for a cell of a table; what a rule fills in is shown in italics."""
    return re.sub(r"{(\w+)}", r"*\1*", text).replace("|", "\\|")


def page() -> str:
    """Return the whole page."""
    faults = "".join(
        f"| {name} | {fault.check}{'' if fault.severity == 'error' else ' (warning)'} | {cell(fault.said)} |\n"
        for name, fault in FAULTS.items()
    )
    known = ""
    for rule in rules.load():
        strength = "" if rule.strength == "cause" else f" ({rule.strength})"
        known += f"| [{rule.name}]({rule.reference}){strength} | {cell(rule.cause)} | {cell(rule.cure)} |\n"
    return HEAD + faults + RULES + known


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
