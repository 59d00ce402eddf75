"""What a person sees while following a job: phases, progress, result. Pure: fed with looks, it returns lines."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ansible_collections.torchrun.cluster.plugins.module_utils.job_views import cut, printable

# Seconds between two lines of progress; the first and the last step are always shown.
LINE_SECONDS = 5.0
# Characters of a failure that is survived; the last one is told whole.
MOST = 160


def is_consequence(failure: Mapping[str, Any]) -> bool:
    """Tell whether a worker failed because another one had gone: that one is the cause."""
    return bool(re.search(r"Connection (closed|reset) by peer|Broken pipe", failure.get("message", "")))


def cause(nodes: Mapping[str, Any], outcome: Mapping[str, Any]) -> tuple[dict[str, Any], str] | None:
    """Return (the failure that came first in time, its host), for the others follow from it; None where none is known.

    Of the last attempt: what came before it, the job has survived.
    """
    found = [(node["failure"], host) for host, node in nodes.items() if node.get("failure")]
    if outcome.get("failure"):
        found.append((outcome["failure"], outcome["host"]))
    return _first(found)


def _first(found: list[tuple[dict[str, Any], str]]) -> tuple[dict[str, Any], str] | None:
    return min(found, key=lambda pair: (is_consequence(pair[0]), pair[0].get("time", 0.0)), default=None)


def earlier(nodes: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Return a sentence on the very first failure, where it was another one: a later attempt may hide the reason."""
    found = _first([(failure, host) for host, node in nodes.items() for failure in node.get("failures", [])])
    if not found or of_failure(found[0]) == of_failure(last):
        return ""
    return f" Before that, on {found[1]}, {of_failure(found[0])}."


def of_failure(failure: Mapping[str, Any]) -> str:
    """Return `rank 2 exited with 1: ValueError: boom`."""
    said = f": {failure['message'].rstrip('.')}" if failure.get("message") else ""
    return f"rank {failure['rank']} {failure['how']}{said}"


def failure_sentence(job: str, nodes: Mapping[str, Any], outcome: Mapping[str, Any]) -> str:
    """Return why the job failed."""
    found = cause(nodes, outcome)
    if not found:
        return f"The job {job} failed on {outcome.get('host', 'a host')}: read its log with logs.yml -e job={job}."
    failure, host = found
    log = f" Its log: {failure['log']}." if failure.get("log") else ""
    return (
        f"The job {job} failed on {host}: {of_failure(failure)}.{earlier(nodes, failure)}{log} "
        f"The lines of all hosts: ansible-playbook playbooks/logs.yml -e job={job}"
    )


def failure_lines(nodes: Mapping[str, Any], outcome: Mapping[str, Any], members: list[str]) -> list[str]:
    """Return what stands above that sentence: the end of the traceback, and how each rank has ended."""
    found = cause(nodes, outcome)
    traceback = [printable(line) for line in found[0].get("traceback", [])] if found else []
    heading = [f"{found[1]}, rank {found[0]['rank']}:"] if found and traceback else []
    return [*heading, *(f"  {line}" for line in traceback), *exit_lines(nodes, members)]


def exit_lines(nodes: Mapping[str, Any], members: list[str]) -> list[str]:
    """Return how each rank has ended, one line a host."""
    lines = []
    for host in members:
        node = nodes.get(host, {})
        if not node.get("ranks"):
            lines.append(f"  {host}: {node.get('state', 'no report')}")
            continue
        first, last = node["ranks"]
        exits, well = node.get("exits", {}), node.get("state") in ("done", "finished", "stopped")
        other = "exited with 0" if well else "ended with the others"
        ranks = [f"rank {rank} {exits.get(str(rank), other)}" for rank in range(first, last + 1)]
        lines.append(f"  {host}: " + ", ".join(ranks))
    return ["exit state", *lines]


class FollowView:
    """Turns successive looks at a job (results of job_progress) into lines, each said once.

    `members` are host names in node_rank order; `began` is the unix time of the launch, or
    None for who comes back to a running job.
    """

    def __init__(self, job: str, run_dir: str, members: list[str], began: float | None) -> None:
        self.job, self.run_dir, self.members, self.began = job, run_dir, members, began
        self.phase = ""
        self.attempts: dict[str, int] = {}
        self.said: set[tuple[str, float]] = set()
        self.states: dict[str, str] = {}
        self.output_said = False
        self.start: dict[str, Any] = {}
        self.step: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.said_at = 0.0
        self.first_step_at: float | None = None
        self.everyone_runs = False

    def update(self, look: Mapping[str, Any]) -> list[str]:
        """Return the lines that this look adds."""
        lines = self._news_of_nodes(look["nodes"]) + self._phases(look["nodes"])
        if look.get("output") and not self.output_said:
            self.output_said = True
            lines.append(f"first output{self._after(time.time())}")
        for event in look["events"]:
            handler = getattr(self, f"_on_{event.get('event')}", None)
            if handler:
                lines += handler(event)
        return lines

    def _after(self, moment: float) -> str:
        """Return ` 5.2 s after the launch`; nothing for who came later."""
        return "" if self.began is None else f" {moment - self.began:.1f} s after the launch"

    def _news_of_nodes(self, nodes: Mapping[str, Any]) -> list[str]:
        """Return a line for each worker that has failed, each hang, and each agent that has left or is back."""
        lines = []
        for host in self.members:
            node = nodes.get(host, {})
            known = [*node.get("failures", []), *node.get("hangs", [])]
            for found in sorted(known, key=lambda found: found["time"]):
                if (host, found["time"]) in self.said:
                    continue
                self.said.add((host, found["time"]))
                what = of_failure(found) if "how" in found else f"made no step for long: {found['silent']}"
                lines.append(f"{host}: {printable(cut(what, MOST))}")
            state = node.get("state", "")
            if state != self.states.get(host, "") and state in ("restarting", "interrupted"):
                why = "its agent lost the others" if state == "restarting" else "its agent was ended"
                lines.append(f"{host}: {why}, and is started again")
            self.states[host] = state
        return lines

    def _phases(self, nodes: Mapping[str, Any]) -> list[str]:
        lines = []
        running = [host for host in self.members if nodes.get(host, {}).get("state") in ("running", "done", "finished")]
        self.everyone_runs = len(running) == len(self.members)
        for host in running:
            attempt = nodes[host].get("attempt", self.attempts.get(host, 0))
            if attempt > self.attempts.get(host, 0):
                lines.append(f"{host}: its workers were started again (restart {attempt})")
            self.attempts[host] = attempt
        if self.everyone_runs:
            phase = "all " + ", ".join(f"{host} {_ranks(nodes[host])}" for host in self.members)
            line = (
                f"rendezvous {len(running)}/{len(self.members)}{self._after(time.time())}: "
                f"world size {_world(nodes, running)}, {phase[4:]}"
            )
        else:
            missing = [host for host in self.members if host not in running]
            phase = "waiting " + ",".join(missing)
            line = f"rendezvous {len(running)}/{len(self.members)}: waiting for {', '.join(missing)}"
        states = [nodes.get(host, {}).get("state") for host in self.members]
        # Once a node has failed the job is over; the others' way out is no rendezvous.
        over = "failed" in states or all(state in ("done", "finished", "stopped") for state in states)
        if phase != self.phase and not over:
            self.phase = phase
            lines.append(line)
        return lines

    def _on_start(self, event: dict[str, Any]) -> list[str]:
        self.start, self.step, self.end = event, {}, {}
        resumed = f", from step {event['start_step']}" if event.get("start_step") else ""
        entropy = event.get("unigram_entropy")
        below = f", unigram entropy of the corpus {entropy:.3f}" if entropy else ""
        return [
            f"training on {event.get('device', '?')} ({event.get('backend', '?')}): {event.get('parameters', 0):,} "
            f"parameters, {event.get('steps', '?')} steps of {event.get('batch_size', '?')} samples{resumed}{below}"
        ]

    def _on_step(self, event: dict[str, Any]) -> list[str]:
        earlier, self.step = self.step, event
        if self.first_step_at is None:
            self.first_step_at = event["time"]
            self.said_at = event["time"]
            if self.began is None:
                return [self._progress(event, earlier)]
            return [f"first step{self._after(event['time'])}"]
        if event["time"] - self.said_at < LINE_SECONDS:
            return []
        self.said_at = event["time"]
        return [self._progress(event, earlier)]

    def _progress(self, event: dict[str, Any], earlier: dict[str, Any]) -> str:
        steps = self.start.get("steps")
        eta = ""
        if steps and earlier and event["step"] > earlier["step"]:
            per_step = (event["time"] - earlier["time"]) / (event["step"] - earlier["step"])
            eta = f"  ETA {timedelta(seconds=round(per_step * (steps - event['step'])))}"
        of = f"/{steps}" if steps else ""
        speed = f"  {event['samples_per_s']:.0f} samples/s" if event.get("samples_per_s") else ""
        loss = f"  loss {event['loss']:.3f}" if event.get("loss") is not None else ""
        return f"step {event['step']}{of}{loss}{speed}{eta}"

    def _on_checkpoint(self, event: dict[str, Any]) -> list[str]:
        return [f"checkpoint of step {event['step']}: {event['path']}"]

    def _on_end(self, event: dict[str, Any]) -> list[str]:
        self.end = event
        return []

    def result(self, nodes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result: world size, last step, final loss, samples/s, and where things are."""
        last = self.end or self.step
        return {
            "job": self.job,
            "world_size": _world(nodes, [host for host in self.members if host in nodes]),
            "step": last.get("step"),
            "loss": last.get("loss"),
            "samples_per_s": last.get("samples_per_s"),
            "run_dir": self.run_dir,
            "report": self.end.get("report"),
        }

    def result_lines(self, result: Mapping[str, Any], status: str) -> list[str]:
        """Return the result as lines for a person."""
        lines = [f"job {self.job} {status}: world size {result['world_size']}"]
        if result["step"] is not None:
            lines[0] += (
                f", step {result['step']}, {_loss(result['loss'])}, {result['samples_per_s'] or 0:.0f} samples/s"
            )
        if result["report"]:
            lines.append(f"report       {result['report']}")
        lines.append(f"run folder   {self.run_dir}")
        return lines


def _loss(loss: float | None) -> str:
    return "no loss" if loss is None else f"final loss {loss:.3f}"


def _ranks(node: Mapping[str, Any]) -> str:
    first, last = node.get("ranks") or (None, None)
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def _world(nodes: Mapping[str, Any], hosts: list[str]) -> int | None:
    return next((nodes[host]["world_size"] for host in hosts if nodes[host].get("world_size")), None)
