"""What the trainer's benches share: ranks as processes that can be paused, step times, tables and result files."""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from mmap import mmap
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"
SOURCE = ROOT / "train/src"
# Steps whose times a file of ticks holds; the oldest are overwritten.
TICKS = 1 << 16


class Ticks:
    """When each step of a process ended, in a file that another process reads: a count, then times of one clock."""

    def __init__(self, path: Path, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(8 * (TICKS + 1)))
        with path.open("r+b") as file:
            self._memory = mmap(file.fileno(), 0)

    def tick(self) -> None:
        """Note that a step has ended."""
        (count,) = struct.unpack_from("q", self._memory, 0)
        struct.pack_into("d", self._memory, 8 * (1 + count % TICKS), time.monotonic())
        struct.pack_into("q", self._memory, 0, count + 1)

    def count(self) -> int:
        """Return how many steps have ended."""
        return int(struct.unpack_from("q", self._memory, 0)[0])

    def last(self, steps: int) -> list[float]:
        """Return the times at which the last steps ended, oldest first."""
        count = self.count()
        return [
            struct.unpack_from("d", self._memory, 8 * (1 + number % TICKS))[0]
            for number in range(max(0, count - min(steps, TICKS)), count)
        ]

    def durations_since(self, moment: float) -> list[float]:
        """Return the seconds of the steps that began and ended after a moment."""
        ends = [end for end in self.last(TICKS) if end > moment]
        return [second - first for first, second in zip(ends, ends[1:], strict=False)]


def clean_up_when_ended() -> None:
    """Let SIGTERM end this process as an exception does, so that what it started ends too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Ranks:
    """The processes of one training run, which can be paused together; killed when the context ends."""

    def __init__(
        self,
        command: Sequence[str],
        world_size: int,
        log: Path,
        variables: Mapping[str, str] | None = None,
        *,
        prefixes: Sequence[Sequence[str]] = (),
        of_rank: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Start them; each has one thread, or a rank alone two, unless `variables` says otherwise.

        A rank's own prefix (such as one that enters a network namespace) and variables come from the last two.
        """
        self._log = log
        self._output: BinaryIO = log.open("wb")
        self.processes: list[subprocess.Popen[bytes]] = []
        shared = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1" if world_size > 1 else "2"}
        if world_size > 1:
            shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
            shared |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
        for rank in range(world_size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world_size > 1 else {}
            environment = {**shared, **(variables or {}), **own, **(of_rank[rank] if of_rank else {})}
            words = [*(prefixes[rank] if prefixes else ()), *command]
            self.processes.append(
                subprocess.Popen(words, env=environment, stdout=self._output, stderr=subprocess.STDOUT)
            )

    def __enter__(self) -> Ranks:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Kill what still runs."""
        self.kill()

    def _signal(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)

    def pause(self) -> None:
        """Stop all processes where they are."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let all processes run."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End all processes at once."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self._output.close()

    def check(self) -> None:
        """Raise RuntimeError with what was printed where a process has failed."""
        if any(process.poll() not in (None, 0) for process in self.processes):
            self._output.flush()
            raise RuntimeError(f"a process failed:\n{self._log.read_text(errors='replace')[-4000:]}")

    def wait(self, seconds: float) -> None:
        """Wait until all have ended well. Raises RuntimeError."""
        end = time.monotonic() + seconds
        while any(process.poll() is None for process in self.processes):
            self.check()
            if time.monotonic() > end:
                raise RuntimeError(f"not done in {seconds} s:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.05)
        self.check()


def trainer_command(options: Mapping[str, Any]) -> list[str]:
    """Return the command line of the trainer with options."""
    return [sys.executable, "-m", "torchrun_trainer", *option_words(options)]


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return options as they are typed."""
    words = []
    for name, value in options.items():
        dashed = name.replace("_", "-")
        words += [f"--{'' if value else 'no-'}{dashed}"] if isinstance(value, bool) else [f"--{dashed}", str(value)]
    return words


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind that a run has written."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def speed(run_dir: Path, batch_size: int, first_step: int) -> float:
    """Return the samples a second of a run from the log line of a step on."""
    steps = [event for event in events(run_dir, "step") if event["step"] >= first_step]
    count, seconds = steps[-1]["step"] - steps[0]["step"], steps[-1]["time"] - steps[0]["time"]
    return float(count * batch_size / seconds)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, least and greatest."""
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table in plain text: the first column left, all others right."""
    cells = [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    lines = []
    for first, *others in cells:
        right = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *right]))
    return "\n".join(lines)


def save(name: str, result: dict[str, Any]) -> Path:
    """Write a result, and return where its picture belongs."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"{(RESULTS / name).relative_to(ROOT)}.json, .png")
    return RESULTS / f"{name}.png"


def machine() -> dict[str, Any]:
    """Return what the numbers were measured on."""
    import torch  # noqa: PLC0415 (seconds that only the end of a bench needs)

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": os.cpu_count(), "torch": str(torch.__version__)}


def pyplot() -> Any:
    """Return matplotlib's pyplot, drawing into files."""
    import matplotlib as mpl  # noqa: PLC0415 (half a second that only the picture needs)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    return plt
