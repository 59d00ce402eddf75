"""Action plugin, on the controller: say why a job failed, from what all hosts can tell or from a folder of logs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.torchrun.cluster.plugins.module_utils import answers, job_views
from ansible_collections.torchrun.cluster.plugins.module_utils.diagnosis import events, finding, folder, rules

DOCUMENTATION = r"""
module: diagnose
short_description: Say why a job failed, from what all hosts can tell or from a folder of logs
description:
  - Runs once, after C(job_evidence) has been registered everywhere as O(answers), or with O(logs) on its own.
  - Returns C(finding). With O(failure) it fails with that sentence, and shows the cause with it.
options:
  job: {description: Name of the job., type: str, default: ""}
  answers: {description: Name of the variable that holds each host's answer., type: str, default: ""}
  logs: {description: "Folder of logs on this machine, a folder or file for each host.", type: str, default: ""}
  failure: {description: Sentence with which the job is known to have failed., type: str, default: ""}
  display: {description: Lines to show before., type: list, elements: str, default: []}
author: [The ansible-torchrun authors]
"""

# Steps are logged a little after they were made.
SLACK_SECONDS = 5.0


class ActionModule(ActionBase):
    """Gather the logs, hold them against the rules, return the lines to display."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `display` and `finding`; `failed` with one sentence where there is nothing to read."""
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            {
                "job": {"type": "str", "default": ""},
                "answers": {"type": "str", "default": ""},
                "logs": {"type": "str", "default": ""},
                "failure": {"type": "str", "default": ""},
                "display": {"type": "list", "elements": "str", "default": []},
            }
        )
        shown = list(arguments["display"])
        since = None
        try:
            known = rules.load()
            if arguments["logs"]:
                sources, ranks = folder.read(Path(arguments["logs"]).expanduser())
            else:
                answered = answers.of_hosts(arguments["answers"], task_vars or {})
                told = {host: answer for host, answer in answered.items() if "sources" in answer}
                description = next((answer["description"] for answer in told.values() if answer["description"]), None)
                if description is None:
                    problem = (
                        f"No host knows the job {arguments['job']}: `ansible-playbook playbooks/status.yml` lists all."
                    )
                    return {"failed": True, "msg": problem}
                members = [node["name"] for node in description["nodes"]]
                sources, ranks = sources_of(answered, members), folder.ranks_of(description)
                since = max((answer["progressed"] for answer in told.values() if "progressed" in answer), default=None)
                shown += [] if arguments["failure"] else [state_of(arguments["job"], told)]
        except (folder.FolderError, rules.RuleError) as error:
            return {"failed": True, "msg": str(error)}
        lines = events.lines_of(sources, time.time())
        if since is not None:
            # What the job survived is not what ended it: steps were made after it.
            lines = [line for line in lines if line.time is None or line.time >= since - SLACK_SECONDS]
        found = finding.find(lines, known, ranks)
        shown += [job_views.printable(line) for line in finding.display(found)]
        result = {"changed": False, "finding": finding.as_dict(found), "display": shown}
        return {**result, "failed": True, "msg": arguments["failure"]} if arguments["failure"] else result


def sources_of(answered: Mapping[str, Mapping[str, Any]], members: list[str]) -> list[events.Source]:
    """Return the logs of all members. A member that does not answer is a sign too."""
    sources = []
    for host in members:
        answer = answered.get(host, {})
        if "sources" not in answer:
            text = f"{host} cannot be reached over SSH: {answer.get('msg', 'no answer')}"
            sources.append(events.Source(host, "state", text, "controller"))
            continue
        sources += folder.of_report(host, answer["report"])
        sources += [
            events.Source(host, log["kind"], log["text"], log["name"], log.get("rank"), log.get("until"))
            for log in answer["sources"]
        ]
    return sources


def state_of(job: str, told: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a line on how the job is."""
    outcome = next((answer["outcome"] for answer in told.values() if answer["outcome"]), None)
    if outcome:
        return f"job {job}: {outcome['status']}"
    running = sorted(host for host, answer in told.items() if answer["active"])
    return f"job {job}: runs on {', '.join(running)}" if running else f"job {job}: runs nowhere, and has not ended"
