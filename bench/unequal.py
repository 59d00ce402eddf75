"""Two ranks of which one runs at half speed: `--balance auto` and `equal` as shares of the sum of solo speeds.

    .venv/bin/python bench/unequal.py [--rounds 3]

Each rank has one thread. One of them is stopped and let go on a hundred times a second, half of the time each, as a CPU
quota does. Solo, each rank trains alone with its half of the batch, both at the same time, so that they share the
machine as they do together. Speeds are those after the calibration. Writes bench/results/unequal.json and unequal.png.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from side_by_side import (
    SOURCE,
    Ranks,
    clean_up_when_ended,
    events,
    machine,
    pyplot,
    save,
    speed,
    spread,
    table,
    trainer_command,
)

sys.path.insert(0, str(SOURCE))

from torchrun_trainer import corpus
from torchrun_trainer.config import Config

# Seconds that the slow rank runs, and stands.
ON = OFF = 0.005
BATCH = 96
FIRST_STEP, STEPS = 30, 70
AUTO, EQUAL = 0.95, 0.67
OPTIONS = {"checkpoint_every": 1000, "resume": "never", "steps": STEPS}


@contextmanager
def half_speed(process: Any) -> Iterator[None]:
    """Stop a process half of the time."""
    ended = Event()

    def alternate() -> None:
        at = time.monotonic()
        while not ended.is_set() and process.poll() is None:
            for number, seconds in ((signal.SIGSTOP, OFF), (signal.SIGCONT, ON)):
                process.send_signal(number)
                at += seconds
                time.sleep(max(0.0, at - time.monotonic()))

    thread = Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def ready(ranks: Ranks, run_dir: Path) -> None:
    """Wait until a run has begun to train: imports are not what is to be slow."""
    while not (run_dir / "metrics.jsonl").exists():
        ranks.check()
        time.sleep(0.05)


def solo(folder: Path, variables: dict[str, str]) -> tuple[float, float]:
    """Return samples/s of a rank alone and of a rank alone at half speed, running at the same time."""
    own = [{**variables, "OMP_NUM_THREADS": "1", "TORCHRUN_RUN_DIR": str(folder / f"solo{rank}")} for rank in (0, 1)]
    runs = [folder / f"solo{rank}" for rank in (0, 1)]
    # More steps than are measured, so that neither is ever alone: the slow one's end is everyone's.
    command = trainer_command({**OPTIONS, "batch_size": BATCH // 2, "steps": 100_000})
    with ExitStack() as stack:
        ranks = [stack.enter_context(Ranks(command, 1, folder / f"solo{rank}.log", own[rank])) for rank in (0, 1)]
        for rank in (0, 1):
            ready(ranks[rank], runs[rank])
        stack.enter_context(half_speed(ranks[1].processes[0]))
        while not (done := events(runs[1], "step")) or done[-1]["step"] < STEPS:
            for one in ranks:
                one.check()
            time.sleep(0.2)
        began = next(event["time"] for event in done if event["step"] >= FIRST_STEP)
        # The fast one in the same time.
        fast = [event for event in events(runs[0], "step") if event["time"] >= began]
        rate = (fast[-1]["step"] - fast[0]["step"]) * (BATCH // 2) / (fast[-1]["time"] - fast[0]["time"])
        return rate, speed(runs[1], BATCH // 2, FIRST_STEP)


def together(balance: str, folder: Path, variables: dict[str, str]) -> tuple[float, dict[int, float], list[int]]:
    """Train with both ranks; return samples/s, the losses by step, and the last plan."""
    run_dir = folder / balance
    command = trainer_command({**OPTIONS, "batch_size": BATCH, "balance": balance})
    with Ranks(command, 2, folder / f"{balance}.log", {**variables, "TORCHRUN_RUN_DIR": str(run_dir)}) as ranks:
        ready(ranks, run_dir)
        with half_speed(ranks.processes[1]):
            ranks.wait(600)
    plans = [event["samples_by_rank"] for kind in ("start", "plan") for event in events(run_dir, kind)]
    losses = {event["step"]: event["loss"] for event in events(run_dir, "step")}
    return speed(run_dir, BATCH, FIRST_STEP), losses, plans[-1]


def draw(rounds: list[dict[str, Any]], path: Path) -> None:
    """Draw shares of the sum of solo speeds by round, and the loss curves of the last."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    numbers = range(1, len(rounds) + 1)
    for name, mark, bar in (("auto", "o-", AUTO), ("equal", "s-", EQUAL)):
        (line,) = left.plot(numbers, [one[name] for one in rounds], mark, label=name)
        left.axhline(bar, color=line.get_color(), lw=0.8, ls="--")
    left.set(xlabel="round", ylabel="share of the sum of solo speeds", ylim=(0, 1.1), xticks=list(numbers))
    left.legend(frameon=False)
    for name, style in (("equal", "-"), ("auto", "--")):
        losses = rounds[-1]["losses"][name]
        right.plot(list(losses), list(losses.values()), style, label=name)
    right.set(xlabel="step", ylabel="loss")
    right.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the rounds and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all three, in turn (default 3)")
    arguments = parser.parse_args()
    clean_up_when_ended()
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-unequal-") as name:
        variables = {"TORCHRUN_DATA_DIR": str(Path(name, "data"))}
        corpus.prepare(Config(), Path(name, "data"))
        for number in range(1, arguments.rounds + 1):
            folder = Path(name, str(number))
            folder.mkdir()
            fast, slow = solo(folder, variables)
            equal, equal_losses, _ = together("equal", folder, variables)
            auto, auto_losses, plan = together("auto", folder, variables)
            total = fast + slow
            difference = max(abs(auto_losses[step] / loss - 1) for step, loss in equal_losses.items())
            rounds.append({
                "solo": [fast, slow], "equal": equal / total, "auto": auto / total, "plan": plan,
                "seconds_per_step": {"equal": BATCH / equal, "auto": BATCH / auto},
                "loss_difference": difference, "losses": {"equal": equal_losses, "auto": auto_losses},
            })  # fmt: skip
            print(
                f"round {number}: solo {fast:.0f} and {slow:.0f} samples/s, equal {equal / total:.3f}, "
                f"auto {auto / total:.3f} with {plan}, losses differ by {difference:.1e}",
                flush=True,
            )
    shares = {name: spread([one[name] for one in rounds]) for name in ("auto", "equal")}
    bars: dict[str, Any] = {"auto": AUTO, "equal": f"about {EQUAL}"}
    worst = max(one["loss_difference"] for one in rounds)
    result = {
        "what": "samples/s of two ranks, one at half speed, as a share of the sum of their solo speeds",
        "batch_size": BATCH,
        "shares": shares,
        "bars": bars,
        "met": shares["auto"]["median"] >= AUTO,
        "largest_relative_difference_of_losses": worst,
        "machine": machine(),
        "rounds": rounds,
    }
    lines = [(name, *shares[name].values(), bars[name]) for name in shares]
    print(table(("balance", "share", "least", "greatest", "bar"), lines))
    print(f"auto: {'met' if result['met'] else 'NOT met'}; losses differ by {worst:.1e} at most")
    draw(rounds, save("unequal", result))


if __name__ == "__main__":
    main()
