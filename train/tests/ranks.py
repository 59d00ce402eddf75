"""Ranks as real processes that start at once: forked from a server that has imported torch already."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
PATIENCE = 60.0

Before = Callable[[int], None]


def start_server() -> None:
    """Start the server that ranks are forked from."""
    os.environ["PYTHONPATH"] = f"{SOURCE}{os.pathsep}{TESTS}"
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "__main__",
            "torchrun_trainer.cli",
            "torch._dynamo",
            "torch.distributed.tensor",
            "tensorboardX",
            "sklearn.datasets",
            "ranks",
            "agents",
        ]
    )


def be_rank(
    rank: int, arguments: Sequence[str], environment: Mapping[str, str], logs: Path, before: Before | None
) -> None:
    """Be a rank: what torchrun starts as a process."""
    gc.freeze()  # all that the server has imported need not be looked through
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(logs / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    torch.set_num_threads(1)
    sys.argv = ["torchrun_trainer", *arguments]
    if before:
        before(rank)
    from torchrun_trainer import cli  # noqa: PLC0415 (the server has it)

    cli.main()


@dataclass(frozen=True)
class Outcome:
    """What came of a run of the trainer."""

    statuses: tuple[int, ...]
    folder: Path
    logs: Path

    @property
    def succeeded(self) -> bool:
        """Whether all ranks did."""
        return not any(self.statuses)

    def _said(self, name: str) -> str:
        return "".join(path.read_text() for path in sorted(self.logs.glob(f"{name}-*")))

    @property
    def stdout(self) -> str:
        """What all ranks printed, rank 0 first."""
        return self._said("stdout")

    @property
    def stderr(self) -> str:
        """What all ranks printed as errors, rank 0 first."""
        return self._said("stderr")

    @property
    def sentence(self) -> str:
        """The one sentence that a run which could not work leaves."""
        assert set(self.statuses) == {2}, (self.statuses, self.stderr)
        (line,) = self.stderr.splitlines()
        assert line.startswith("torchrun_trainer: ")
        return line.removeprefix("torchrun_trainer: ")

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events of the run folder; each line has to be whole."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [event for event in self.events if event["event"] == kind]

    def curve(self, *names: str) -> dict[int, tuple[float, ...]]:
        """Numbers of each logged step, the last time that it was done."""
        return {event["step"]: tuple(event[name] for name in names) for event in self.of("step")}

    @property
    def losses(self) -> list[float]:
        """The loss of each logged step, in order."""
        return [loss for _, (loss,) in sorted(self.curve("loss").items())]

    @property
    def checkpoints(self) -> list[int]:
        """The steps of the checkpoints."""
        return sorted(int(path.name[5:]) for path in (self.folder / "checkpoints").glob("step-????????"))

    def state(self) -> dict[str, Any]:
        """The state in the newest checkpoint."""
        latest = (self.folder / "checkpoints/latest").read_text().strip()
        return torch.load(self.folder / "checkpoints" / latest / "state.pt", weights_only=True)


class Ranks:
    """The ranks of a run. Like torchrun's agent, this hosts the store that they meet at."""

    def __init__(  # noqa: PLR0917
        self,
        world_size: int,
        arguments: Sequence[str],
        folder: Path,
        logs: Path,
        environment: Mapping[str, str],
        before: Before | None = None,
    ) -> None:
        self.folder, self.logs = folder, logs
        logs.mkdir(parents=True, exist_ok=True)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared = {
            "TORCHRUN_RUN_DIR": str(folder),
            "PATH": os.environ["PATH"],
            "HOME": os.environ["HOME"],
            "GLOO_SOCKET_IFNAME": "lo",
            **environment,
        }
        if world_size > 1:  # a rank alone is started without torchrun
            shared |= {
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
        context = multiprocessing.get_context("forkserver")
        self._processes = []
        for rank in range(world_size):
            own = shared | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if world_size > 1 else {})
            process = context.Process(target=be_rank, args=(rank, arguments, own, logs, before), daemon=True)
            process.start()
            self._processes.append(process)

    @property
    def alive(self) -> bool:
        """Whether any rank still runs."""
        return any(process.is_alive() for process in self._processes)

    def signal(self, number: int, *ranks: int) -> None:
        """Send a signal to some ranks, at once; to those that are gone, nothing."""
        for rank in ranks:
            if self._processes[rank].is_alive():
                os.kill(self._processes[rank].pid or 0, number)

    def wait_until(self, condition: Callable[[], bool], pause: float = 0.001) -> None:
        """Wait until something is the case, or all ranks are gone."""
        deadline = time.monotonic() + PATIENCE
        while not condition() and self.alive:
            assert time.monotonic() < deadline, self.outcome().stderr
            time.sleep(pause)

    def wait_for_step(self, step: int) -> None:
        """Wait until metrics.jsonl tells of a step of this start."""
        path = self.folder / "metrics.jsonl"

        def reached() -> bool:
            if not path.exists():
                return False
            steps = [line for line in path.read_text().splitlines() if line.startswith('{"event": "step"')]
            return any(line.endswith("}") and json.loads(line)["step"] >= step for line in steps)

        self.wait_until(reached)

    def outcome(self) -> Outcome:
        """What came of it so far; a rank that runs still has no status and counts as 0."""
        return Outcome(tuple(process.exitcode or 0 for process in self._processes), self.folder, self.logs)

    def finish(self) -> Outcome:
        """Wait for all ranks. One that hangs is killed, and the test fails."""
        deadline = time.monotonic() + PATIENCE
        try:
            while left := [process.sentinel for process in self._processes if process.is_alive()]:
                assert time.monotonic() < deadline, f"ranks hang: {self.outcome().stderr}"
                wait_for_any(left, timeout=1)
        finally:
            for process in self._processes:
                if process.is_alive():
                    process.kill()
                process.join()
        return self.outcome()
