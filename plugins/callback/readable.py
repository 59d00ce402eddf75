"""Stdout callback for people: what changed, what failed and why, in sentences."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from typing import Any

from ansible import constants as C  # noqa: N812 (the name that Ansible itself uses)
from ansible import context
from ansible.executor.stats import AggregateStats
from ansible.executor.task_result import CallbackTaskResult
from ansible.playbook import Playbook
from ansible.playbook.play import Play
from ansible.playbook.task import Task
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: readable
type: stdout
short_description: What changed, what failed and why, in sentences
description:
  - One line a task that changed something, with the hosts; tasks that changed nothing are shown with C(-v).
  - A failure is its C(msg), once for all hosts that share it. The lines of a result's C(display) are shown as they are.
extends_documentation_fragment: [default_callback]
requirements: [set as stdout in configuration]
author: [The ansible-torchrun authors]
"""


# As Ansible's own for a playbook that failed.
EXIT_NO_HOSTS = 2


class CallbackModule(CallbackBase):
    """Collects a task's results and prints them when the next task begins."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "torchrun.cluster.readable"

    def __init__(self) -> None:
        super().__init__()
        self.began = time.monotonic()
        self.task = ""
        self.hosts: list[str] = []
        self.changed: list[str] = []
        self.quiet: list[str] = []
        self.failures: dict[str, list[str]] = {}
        self.transient = False

    # One line that is overwritten: which task runs now. Only where somebody watches.
    def _say_running(self, name: str) -> None:
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns
            sys.stdout.write(f"\r\033[K  ... {name}"[: width + 4])
            sys.stdout.flush()
            self.transient = True

    def _clear(self) -> None:
        if self.transient:
            sys.stdout.write("\r\033[K")
            sys.stdout.flush()
            self.transient = False

    def _print(self, text: str, color: str | None = None) -> None:
        self._clear()
        self._display.display(text, color=color)

    def _end_task(self) -> None:
        if self.changed:
            verb = "would change" if context.CLIARGS.get("check") else "changed"
            self._print(f"  {verb}  {', '.join(self.changed)}: {self.task}", C.COLOR_CHANGED)
        if self.quiet and self._display.verbosity > 0:
            self._print(f"  ok  {', '.join(self.quiet)}: {self.task}", C.COLOR_OK)
        for message, hosts in self.failures.items():
            self._print_sentences(f"FAILED  {self.task}", f"{', '.join(hosts)}: {message}" if any(hosts) else message)
        self.changed, self.quiet, self.failures = [], [], {}

    def _news(self, result: CallbackTaskResult) -> None:
        """Print warnings; where an error came from is for -v, its sentence is printed with the failure."""
        if self._display.verbosity > 0:
            self._handle_warnings_and_exception(result)
        else:
            self._handle_warnings(result.result)

    def v2_playbook_on_start(self, playbook: Playbook) -> None:
        """Start the clock."""
        del playbook
        self.began = time.monotonic()

    def v2_playbook_on_play_start(self, play: Play) -> None:
        """Print the title of the play."""
        self.hosts = list(play.hosts)
        self._end_task()
        check = " (check mode: nothing is changed)" if context.CLIARGS.get("check") else ""
        self._print(f"{play.get_name().strip()}{check}", C.COLOR_HIGHLIGHT)

    def v2_playbook_on_task_start(self, task: Task, is_conditional: bool) -> None:
        """Print what the last task did, and show this one as running."""
        del is_conditional
        self._end_task()
        self.task = task.get_name().strip()
        self._say_running(self.task)

    def v2_playbook_on_handler_task_start(self, task: Task) -> None:
        """A handler is a task like others."""
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        """Note the host, and print what the result asks to be shown."""
        host = result.host.get_name()
        content = result.result
        self._news(result)
        (self.changed if result.is_changed() else self.quiet).append(host)
        if result.task.action in C._ACTION_DEBUG:
            self._print(f"  {content.get('msg', self._dump_results(content))}")
        self._show(content)
        if self._display.verbosity > 2:
            self._print(self._dump_results(content, indent=2))

    def _show(self, content: dict[str, Any]) -> None:
        for line in content.get("display") or []:
            self._print(line)

    def v2_on_file_diff(self, result: CallbackTaskResult) -> None:
        """Print differences under --diff."""
        diffs = result.result.get("diff") or [
            item["diff"] for item in result.result.get("results", []) if item.get("diff") and item.get("changed")
        ]
        text = self._get_diff(diffs) if diffs else ""
        if text.strip():
            self._print(f"  {result.host.get_name()}: {self.task}")
            self._print(text)

    def v2_runner_on_failed(self, result: CallbackTaskResult, ignore_errors: bool = False) -> None:
        """Print why, in the words of the task."""
        del ignore_errors
        self._news(result)
        self._show(result.result)
        self._complain(result, result.result)

    def v2_runner_item_on_failed(self, result: CallbackTaskResult) -> None:
        """Items are reported with their task; a failed one at once."""
        self._complain(result, result.result)

    def _complain(self, result: CallbackTaskResult, content: dict[str, Any]) -> None:
        if any(item.get("failed") for item in content.get("results") or []):
            return  # each item has been printed
        message = str(content.get("msg") or content.get("stderr") or content.get("stdout") or "it gave no reason")
        host = "" if result.task.run_once else result.host.get_name()
        for stream in ("stderr", "stdout"):
            text = str(content.get(stream) or "").strip()
            if text and text not in message:
                message += f"\n{text}"
        self.failures.setdefault(message, []).append(host)

    def _print_sentences(self, title: str, text: str) -> None:
        self._print(title, C.COLOR_ERROR)
        width = max(60, min(120, shutil.get_terminal_size((120, 24)).columns)) - 2
        for line in text.strip().splitlines():
            for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False):
                self._print(f"  {part}", C.COLOR_ERROR)

    def v2_runner_on_unreachable(self, result: CallbackTaskResult) -> None:
        """Say which host does not answer, and what to look at."""
        reason = " ".join(str(result.result.get("msg", "")).split())
        # Of Ansible's words around it only what ssh said.
        reason = reason.removeprefix("Task failed: ").rpartition("can be reached over ssh: ")[2].rstrip(". ")
        self._print_sentences(
            f"NO ANSWER  {self.task}",
            f"{result.host.get_name()} cannot be reached over SSH ({reason}). "
            "Check that it is up, and its ansible_host, ansible_user and key in the inventory.",
        )

    def v2_runner_retry(self, result: CallbackTaskResult) -> None:
        """Retries are waiting, not news."""

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Say that a play had no host. For one of ours it is an error, which Ansible itself would call success."""
        if self.hosts not in (["nodes"], ["torchrun_members"]):
            self._print("  no host of the inventory matches this play", C.COLOR_SKIP)
            return
        sentence = "No node takes part: --tags and --skip-tags leave out what the launch needs, so drop them."
        if self.hosts == ["nodes"]:
            sentence = (
                "No host of the group `nodes` is left: list your hosts under it, as inventory/example/hosts.yml does, "
                "and look at --limit."
            )
        self._print_sentences("FAILED  Nothing was done", sentence)
        raise SystemExit(EXIT_NO_HOSTS)

    def v2_playbook_on_stats(self, stats: AggregateStats) -> None:
        """One line a host, in the form that scripts look for, and the time."""
        self._end_task()
        self._clear()
        hosts = sorted(stats.processed)
        width = max((len(host) for host in hosts), default=0)
        self._print("")
        self._print("PLAY RECAP", C.COLOR_HIGHLIGHT)
        for host in hosts:
            counts = stats.summarize(host)
            words = " ".join(
                f"{name}={counts[key]}"
                for name, key in (
                    ("ok", "ok"),
                    ("changed", "changed"),
                    ("unreachable", "unreachable"),
                    ("failed", "failures"),
                )
            )
            bad = counts["failures"] or counts["unreachable"]
            color = C.COLOR_ERROR if bad else C.COLOR_CHANGED if counts["changed"] else C.COLOR_OK
            self._print(f"{host:<{width}} : {words}", color)
        self._print(f"{time.monotonic() - self.began:.1f} s")
