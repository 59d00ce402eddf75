"""What a checkpoint costs training: written in the background, over the same state written before training goes on.

    .venv/bin/python bench/checkpoint.py [--checkpoints 12]

One training run of one rank with a model of some tens of millions of parameters takes checkpoints by turns: one as the
trainer does, the next by a call that returns when the file is on disk. What a checkpoint adds to the step that takes it
is that step's time over the median of the steps in which nothing is written; what it adds to the steps after it, which
share processor and disk with the writing, is told too. Writes bench/results/checkpoint.json and checkpoint.png.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from side_by_side import ROOT, Ranks, Ticks, clean_up_when_ended, machine, option_words, pyplot, save, spread, table

BAR = 0.2
# The first of each kind finds no buffers and no pages: it is not counted.
DISCARDED = 2
OPTIONS = {
    "layers": 8, "width": 512, "heads": 8, "block_size": 32, "batch_size": 2, "checkpoint_every": 12, "log_every": 12,
    "resume": "never", "keep": 2,
}  # fmt: skip


def worker(settings: dict[str, Any]) -> None:
    """Run the trainer; every other checkpoint is written in the foreground. Saves and their ends are noted."""
    from torchrun_trainer import cli, snapshot, timing  # noqa: PLC0415 (only the worker has it on its path)

    ticks, notes = Ticks(Path(settings["ticks"])), Path(settings["notes"])
    saves: list[dict[str, Any]] = []
    mark, start = timing.StepTimer.mark, snapshot.Writer.start

    def marked(self: timing.StepTimer, name: str) -> None:
        if name == "begun":  # and so the step before has ended, its checkpoint included
            ticks.tick()
        mark(self, name)

    def begun(
        self: snapshot.Writer,
        state: dict[str, Any],
        write: Callable[[dict[str, Any]], Path],
        done: Callable[[Path], None],
    ) -> None:
        note: dict[str, Any] = {"step": state["step"], "background": len(saves) % 2 == 0, "begun": time.monotonic()}
        saves.append(note)

        def written(path: Path) -> None:
            done(path)
            note["written"] = time.monotonic()
            note["bytes"] = (path / "state.pt").stat().st_size

        if note["background"]:
            start(self, state, write, written)
        else:
            self.finish()
            written(write(state))
        note["returned"] = time.monotonic()

    timing.StepTimer.mark = marked
    snapshot.Writer.start = begun
    sys.argv = ["torchrun_trainer", *option_words(settings["options"])]
    cli.main()
    notes.write_text(json.dumps(saves))


def costs(begins: list[float], saves: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what each kind of checkpoint adds: to the step that takes it, and to the steps until it is written."""
    durations = {step: end - begin for step, (begin, end) in enumerate(zip(begins, begins[1:], strict=False), start=1)}
    begun = dict(enumerate(begins, start=1))
    writing = {
        step
        for step in durations
        if any(begun[step] < save_["written"] and save_["begun"] < begun[step + 1] for save_ in saves)
    }
    usual = statistics.median(seconds for step, seconds in durations.items() if step > 2 and step not in writing)
    found: dict[str, Any] = {"quiet_step": usual, "background": [], "foreground": []}
    for save_ in saves[DISCARDED:]:
        if save_["step"] not in durations:  # that of the last step: nothing comes after it
            continue
        later = [step for step in writing if save_["step"] < step < save_["step"] + OPTIONS["checkpoint_every"]]
        found["background" if save_["background"] else "foreground"].append(
            {
                "step": save_["step"],
                "added_to_its_step": durations[save_["step"]] - usual,
                "added_to_later_steps": sum(durations[step] - usual for step in later),
                "until_written": save_["written"] - save_["begun"],
            }
        )
    return found


def draw(found: dict[str, Any], result: dict[str, Any], path: Path) -> None:
    """Draw what every checkpoint added."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for name, mark in (("foreground", "o-"), ("background", "s-")):
        added = [1000 * save_["added_to_its_step"] for save_ in found[name]]
        axes.plot(range(1, len(added) + 1), added, mark, label=f"{name}: its step")
    later = [1000 * save_["added_to_later_steps"] for save_ in found["background"]]
    axes.plot(range(1, len(later) + 1), later, "^:", label="background: the steps meanwhile")
    axes.set(xlabel="checkpoint", ylabel="milliseconds added", ylim=(0, None))
    axes.set_title(f"{result['parameters'] / 1e6:.0f} million parameters, ratio of medians {result['ratio']:.2f}")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoints", type=int, default=12, help="checkpoints of each kind (default 12)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(json.loads(arguments.worker))
        return
    clean_up_when_ended()
    steps = OPTIONS["checkpoint_every"] * (2 * arguments.checkpoints + DISCARDED) + 1
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as name:
        folder = Path(name)
        ticks = Ticks(folder / "ticks", create=True)
        settings = {
            "ticks": str(folder / "ticks"),
            "notes": str(folder / "saves"),
            "options": {**OPTIONS, "steps": steps},
        }
        command = [sys.executable, str(ROOT / "bench/checkpoint.py"), "--worker", json.dumps(settings)]
        variables = {"TORCHRUN_RUN_DIR": str(folder / "run"), "TORCHRUN_DATA_DIR": str(folder / "data")}
        with Ranks(command, 1, folder / "log", variables) as ranks:
            ranks.wait(3600)
        saves = json.loads((folder / "saves").read_text())
        found = costs(ticks.last(steps), saves)
        lines = (folder / "run/metrics.jsonl").read_text().splitlines()
        parameters = next(json.loads(line)["parameters"] for line in lines if '"event": "start"' in line)
    of = {
        name: {key: spread([save_[key] for save_ in found[name]]) for key in found[name][0] if key != "step"}
        for name in ("background", "foreground")
    }
    both = {
        name: statistics.median(save_["added_to_its_step"] + save_["added_to_later_steps"] for save_ in found[name])
        for name in of
    }
    step = {name: numbers["added_to_its_step"]["median"] for name, numbers in of.items()}
    result = {
        "what": "seconds that a checkpoint adds to the step that takes it: in the background over in the foreground",
        "parameters": parameters,
        "bytes": saves[-1]["bytes"],
        "ratio": step["background"] / step["foreground"],
        "ratio_with_later_steps": both["background"] / both["foreground"],
        "bar": BAR,
        "met": step["background"] / step["foreground"] <= BAR,
        "medians": of,
        "quiet_step": found["quiet_step"],
        "machine": machine(),
        "saves": found,
    }
    head = ("seconds, median", "its step", "later steps", "until written")
    keys = ("added_to_its_step", "added_to_later_steps", "until_written")
    size = f"{parameters:,} parameters, {saves[-1]['bytes'] / 1e6:.0f} MB"
    print(f"{size}; a quiet step takes {found['quiet_step']:.3f} s")
    print(table(head, [(name, *(numbers[key]["median"] for key in keys)) for name, numbers in of.items()]))
    print(f"ratio {result['ratio']:.3f}, bar {BAR}: {'met' if result['met'] else 'NOT met'}")
    print(f"with the steps until it is written: ratio {result['ratio_with_later_steps']:.3f}")
    draw(found, result, save("checkpoint", result))


if __name__ == "__main__":
    main()
