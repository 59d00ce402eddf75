"""Runs torchrun as the main process of the unit, and gives systemd an exit status that tells what happened.

torchrun itself exits with 1 for everything. Here: 0 finished, 143 stopped by SIGTERM, 70 failed for good (do not try
again), 75 lost the other nodes (try again: this agent rejoins the rendezvous).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import clocks
import failures
import hang_watch
import run_state

# As long as torchrun itself waits for agents whose workers are not done.
OTHERS_SECONDS = 300.0
LOOK_SECONDS = 0.2
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


def watched(monitor: Any) -> Any:
    """Return what looks after the workers, changed so that failures are noted and hangs are ended."""
    seconds = float(os.environ.get("TORCHRUN_HANG_TIMEOUT", "0"))
    folder = os.environ.get("TORCHRUN_HEARTBEAT_DIR", "")
    noted = failures.noting(monitor)
    return hang_watch.watching(noted, hang_watch.HangWatch(Path(folder), seconds)) if seconds and folder else noted


def main() -> int:
    """Run torchrun with TORCHRUN_ARGV (a JSON list) and the PET_* variables; return the exit status."""
    run_state.await_storage()
    os.chdir(run_state.run_dir() / "code")  # not systemd's to do: it would fail where the storage is away
    if run_state.outcome().get("status") == "failed" or run_state.is_superseded():
        return run_state.EXIT_FAILED
    run_state.report("rendezvous")

    from torch.distributed import run  # noqa: PLC0415 (takes seconds; the report above must not wait for it)
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent  # noqa: PLC0415
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous  # noqa: PLC0415

    clocks.install(dynamic_rendezvous)
    SimpleElasticAgent._exit_barrier = lambda _: await_others()
    LocalElasticAgent._monitor_workers = watched(LocalElasticAgent._monitor_workers)
    try:
        run.main(json.loads(os.environ["TORCHRUN_ARGV"]))
    except SignalException:
        return run_state.EXIT_STOPPED
    except ChildFailedError as error:
        failure = failures.describe(*next(failures.in_order(error.failures)))
        known = {**run_state.ranks_of(run_state.last_report()), "exits": failures.exits(error.failures)}
        run_state.report("failed", failure=failure, **known)
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
