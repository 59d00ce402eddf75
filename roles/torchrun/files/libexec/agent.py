"""Runs torchrun as the main process of the unit, and gives systemd an exit status that tells what happened.

torchrun itself exits with 1 for everything. Here: 0 finished, 143 stopped by SIGTERM, 70 failed for good (do not try
again), 75 lost the other nodes (try again: this agent rejoins the rendezvous).
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import run_state

# As long as torchrun itself waits for agents whose workers are not done.
OTHERS_SECONDS = 300.0
LOOK_SECONDS = 0.2
# By convention wrong arguments, of argparse, of Python itself and of the packaged trainer: they stay wrong.
EXIT_USAGE = 2
# States of a node whose workers ended too early, or begin anew.
LEFT = ("interrupted", "restarting", "rendezvous", "failed")


class OthersLeftError(Exception):
    """The workers of this node are done, but the job is not: another node left before its own were."""


def await_others() -> None:
    """Wait until the workers of all nodes are done. Takes the place of torchrun's exit barrier.

    torchrun's waits up to 300 s in C++, deaf to SIGTERM, also for agents that will never come; and it takes workers
    that ended because another node is shut down (all ranks save and stop together) for a finished job.

    Raises OthersLeftError where a node has left, or begun anew, while the job is open.
    """
    run_state.report("done", **run_state.ranks_of(run_state.last_report()))
    members = [node["name"] for node in run_state.read_json(run_state.run_dir() / "job.yml").get("nodes", [])]
    elastic = ":" in os.environ["TORCHRUN_WORLD_SIZE"]
    deadline = time.monotonic() + OTHERS_SECONDS
    while time.monotonic() < deadline:
        status = run_state.outcome().get("status")
        if status == "failed":
            raise OthersLeftError("the job has failed on another node")
        if status:
            return
        states = [run_state.report_of(host).get("state", "") for host in members]
        # A node that an elastic job does without may be waiting for the next rendezvous.
        left = [
            host for host, state in zip(members, states) if state in LEFT and not (elastic and state == "rendezvous")
        ]
        if left:
            raise OthersLeftError(f"{', '.join(left)} left before its workers were done")
        if all(state in ("done", "finished") or (elastic and state in ("", "rendezvous")) for state in states):
            # The host of the rendezvous may be gone before this agent has said goodbye to it: no news in the log.
            logging.getLogger("torch.distributed.elastic.rendezvous").setLevel(logging.ERROR)
            return
        time.sleep(LOOK_SECONDS)


def without_restart_of_wrong_usage(monitor: Any) -> Any:
    """Return what looks after the workers, changed so that one that exits with EXIT_USAGE is not started again."""

    def monitored(agent: Any, group: Any) -> Any:
        result = monitor(agent, group)
        if result.is_failed() and any(failure.exitcode == EXIT_USAGE for failure in result.failures.values()):
            agent._remaining_restarts = 0
        return result

    return monitored


def last_words(log_dir: Path, local_rank: int) -> tuple[str, Path | None]:
    """Return the last line that a worker wrote to stderr, and that file; None where there is none."""
    files = sorted(log_dir.glob(f"*/attempt_*/{local_rank}/stderr.log"), key=lambda path: path.stat().st_mtime)
    if not files:
        return "", None
    lines = [line for line in files[-1].read_text(errors="replace").splitlines() if line.strip()]
    return (lines[-1].strip() if lines else ""), files[-1]


def describe(error: Any) -> dict[str, Any]:
    """Describe a ChildFailedError: the rank that failed first on this node, how, when, and its log."""
    rank, failure = error.get_first_failure()
    said, log = last_words(Path(os.environ["PET_LOG_DIR"]), failure.local_rank)
    recorded = failure.message if failure.error_file != "<N/A>" else ""
    words = (recorded or said).strip().splitlines() or [""]
    how = f"was killed by {failure.signal_name()}" if failure.exitcode < 0 else f"exited with {failure.exitcode}"
    return {
        "rank": rank,
        "how": how,
        "exit_code": failure.exitcode,
        # torch puts the rank in front of a traceback's lines; the rank is said already.
        "message": re.sub(r"^\[rank\d+\]:\s*", "", words[-1]),
        # torch's time has whole seconds, and is when the agent noticed; the worker's last word came before.
        "time": log.stat().st_mtime if log and said else float(failure.timestamp),
        "log": str(log or ""),
    }


def main() -> int:
    """Run torchrun with TORCHRUN_ARGV (a JSON list) and the PET_* variables; return the exit status."""
    if run_state.outcome().get("status") == "failed":
        return run_state.EXIT_FAILED
    run_state.report("rendezvous")

    from torch.distributed import run  # noqa: PLC0415 (takes seconds; the report above must not wait for it)
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent  # noqa: PLC0415
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    SimpleElasticAgent._exit_barrier = lambda _: await_others()
    LocalElasticAgent._monitor_workers = without_restart_of_wrong_usage(LocalElasticAgent._monitor_workers)
    try:
        run.main(json.loads(os.environ["TORCHRUN_ARGV"]))
    except SignalException:
        return run_state.EXIT_STOPPED
    except ChildFailedError as error:
        failure = describe(error)
        run_state.report("failed", failure=failure)
        run_state.conclude("failed", failure=failure)
        return run_state.EXIT_FAILED
    except Exception as error:  # whatever the rendezvous raises: the others are gone
        message = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
        print(f"torchrun agent: {message}", file=sys.stderr, flush=True)  # noqa: T201 (goes to the journal)
        run_state.report("restarting", message=message)
        return run_state.EXIT_FAILED if run_state.outcome().get("status") == "failed" else run_state.EXIT_TRY_AGAIN
    if os.environ["TORCHRUN_NODE_RANK"] == "0":
        run_state.conclude("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
