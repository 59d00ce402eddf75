"""Action plugin: examine all hosts before a job, each step on every host, the last one on the controller."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.torchrun.cluster.plugins.module_utils import job_views
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight import checks, collective
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.check_network import interface_of
from ansible_collections.torchrun.cluster.plugins.module_utils.preflight.findings import Cluster, Finding

DOCUMENTATION = r"""
module: preflight
short_description: Examine all hosts before a job
description:
  - C(look) on every host makes its report, C(probe) on every host tries all others, C(judge) once says what is wrong.
  - Fails when something is, unless O(mode) is C(warn).
options:
  step:
    description: Which step; the last two are for the test of collective operations, which C(preflight_collective) runs.
    type: str
    choices: [look, probe, judge, plan_collective, judge_collective]
    required: true
  mode: {description: What an error does., type: str, choices: [warn, strict], default: strict}
  report: {description: File on this machine for the findings as JSON., type: str, default: ""}
author: [The ansible-torchrun authors]
"""

STEPS = ["look", "probe", "judge", "plan_collective", "judge_collective"]


class ActionModule(ActionBase):
    """Hand each step what it needs of the others' answers."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the step found."""
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            {
                "step": {"type": "str", "choices": STEPS, "required": True},
                "mode": {"type": "str", "choices": ["warn", "strict"], "default": "strict"},
                "report": {"type": "str", "default": ""},
            }
        )
        variables = task_vars or {}
        if arguments["step"] == "judge":
            return judge(variables, arguments["mode"], arguments["report"])
        if arguments["step"] == "plan_collective":
            return {"changed": False, "ansible_facts": {"collective": plan_collective(variables)}}
        if arguments["step"] == "judge_collective":
            return judge_collective(variables, arguments["mode"])
        module, asked = {"look": ("facts", asked_of), "probe": ("probe", tries_for)}[arguments["step"]]
        return self._execute_module(
            module_name=f"torchrun.cluster.preflight_{module}",
            module_args={**common(variables), **asked(variables, variables["inventory_hostname"])},
            task_vars=variables,
        )


def common(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what both steps on hosts are given. The token is the play's: the same on all hosts, another each time."""
    cluster = variables["cluster"]
    return {"user": cluster["user"], "shared_path": cluster["shared_path"], "token": variables["preflight_token"]}


def nodes_of(variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes that take part, in node_rank order."""
    hosts = variables["ansible_play_hosts_all"]
    return [node for node in variables["cluster"]["nodes"] if node["name"] in hosts]


def asked_of(variables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what the module is asked on a host."""
    nodes = nodes_of(variables)
    mine = next(node for node in nodes if node["name"] == name)
    return {
        "host": name,
        "address": mine["address"],
        "names": [word for node in nodes for word in (node["alias"], node["name"])],
        "peers": len(nodes) - 1,
        "port": variables["run_options"]["master_port"],
    }


def reports_of(variables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what each host answered to the steps so far."""
    reports = {}
    for node in nodes_of(variables):
        host = variables["hostvars"][node["name"]]
        looked, probed = (host.get(name) or {} for name in ("__looked", "__probed"))
        if "report" not in looked:
            reports[node["name"]] = {"problem": first_line(looked.get("msg", "no answer"))}
            continue
        reports[node["name"]] = {
            **looked["report"],
            **{key: probed[key] for key in ("probe", "tokens") if key in probed},
        }
    return reports


def first_line(text: str) -> str:
    """Return the first line of what Ansible says of a host that it cannot reach."""
    return next((line.strip() for line in str(text).splitlines() if line.strip()), "no answer")


def tries_for(variables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what a host is to try: every other host that listens."""
    reports = reports_of(variables)
    nodes = nodes_of(variables)
    address = next(node["address"] for node in nodes if node["name"] == name)
    link = interface_of(reports[name]["facts"], address)
    return {
        "peers": {
            node["name"]: {"address": node["address"], "ports": reports[node["name"]]["listen"]["ports"]}
            for node in nodes
            if node["name"] != name and reports[node["name"]].get("listen", {}).get("ports")
        },
        "hosts": [node["name"] for node in nodes if "problem" not in reports[node["name"]]],
        "mtu": link["mtu"] if link else 1500,
    }


def judge(variables: Mapping[str, Any], mode: str, report: str) -> dict[str, Any]:
    """Return the table and the findings."""
    cluster = Cluster(nodes_of(variables), variables["cluster"]["shared_path"], variables["cluster"]["user"])
    found = checks.examine(cluster, reports_of(variables))
    result = verdict(found, job_views.align(checks.table(cluster, found, list(checks.CHECKS))), mode)
    problem = write(Path(report).expanduser(), cluster, found) if report else None
    return {**result, "failed": True, "msg": problem} if problem else result


def verdict(found: list[Finding], shown: list[str], mode: str) -> dict[str, Any]:
    """Return the result of a task that found something or nothing; `shown` is displayed before the findings."""
    errors = [finding for finding in found if finding.severity == "error"]
    result = {
        "changed": False,
        "findings": checks.as_dicts(found),
        "display": [job_views.printable(line) for line in [*shown, *checks.lines(found)]],
    }
    return {**result, "failed": True, "msg": sentence(errors)} if errors and mode == "strict" else result


def plan_collective(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of preflight_collective that all hosts share."""
    reports, nodes = reports_of(variables), nodes_of(variables)
    processes = [
        len(reports[node["name"]]["facts"]["gpus"]) or 1 if node["nproc_per_node"] == "auto" else node["nproc_per_node"]
        for node in nodes
    ]
    return {
        "hosts": [node["name"] for node in nodes],
        "addresses": {node["name"]: node["address"] for node in nodes},
        "processes": [int(count) for count in processes],
        "master_addr": nodes[0]["address"],
        "master_port": reports[nodes[0]["name"]]["free_port"],
    }


def judge_collective(variables: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Return what the test of collective operations showed."""
    plan = variables["collective"]
    hosts, processes = plan["hosts"], plan["processes"]
    answers = [variables["hostvars"][host].get("__collected") or {} for host in hosts]
    ranks = {int(rank): found for answer in answers for rank, found in answer.get("ranks", {}).items()}
    found = list(collective.problems(ranks, hosts, processes))
    shown: list[str] = []
    if not found:
        earlier = answers[0].get("earlier")
        result = {**ranks[0], "pairs": {name: pair for rank in ranks.values() for name, pair in rank["pairs"].items()}}
        found = list(collective.slow(result, earlier, hosts, processes))
        shown = collective.lines(result, earlier, hosts, processes)
    return verdict(found, shown, mode)


def sentence(errors: list[Finding]) -> str:
    """Return one sentence for all that stands in a job's way."""
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"{errors[0].what}{more}: see above for what to do, or give -e preflight=warn to go on all the same."


def write(path: Path, cluster: Cluster, found: list[Finding]) -> str | None:
    """Write the findings as JSON; return a sentence where that fails."""
    content = {"time": time.time(), "hosts": cluster.names, "findings": checks.as_dicts(found)}
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        return f"report {path} cannot be written: {error.strerror or error}."
    return None
