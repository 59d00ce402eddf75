"""Tokens a second of the trainer against plain PyTorch, Accelerate, Lightning Fabric and nanoGPT.

    pip install -r bench/requirements.txt
    .venv/bin/python bench/trainer.py [--nanogpt CHECKOUT] [--rounds 20] [--steps 12]

Same model, corpus, samples a step and precision. All loops of a row are started, warmed up and paused; then each runs
for some steps in turn, so that all meet the same machine. A ratio is the median of the rounds' ratios; beside it stands
that of the fastest rounds, which other work on the machine disturbs the least. The row `defaults` has the trainer
without options, also with a larger model, against a loop that trains as nanoGPT does by default on a CPU, and against
nanoGPT itself where a checkout is given; nanoGPT trains with float32 and one process there, so it is in those rows
alone.
Writes bench/results/trainer.json and trainer.png.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from side_by_side import ROOT, SOURCE, Ranks, Ticks, clean_up_when_ended, machine, pyplot, save, spread, table

sys.path.insert(0, str(SOURCE))

from torchrun_trainer import corpus
from torchrun_trainer.config import Config

STEPS = 1_000_000
# By world size; with two, more than the steps in which the trainer measures the speed of ranks.
WARM_UP = {1: 12, 2: 32}
# The shape of nanoGPT's smallest documented model, on which it is small enough for a CPU; the default one is smaller.
LARGER = {"layers": 6, "heads": 6, "width": 384, "block_size": 128, "batch_size": 8}
PLAIN, DEFAULTS = 0.97, 1.25


class Clock(Protocol):
    """Where the times of a loop's steps come from."""

    def count(self) -> int:
        """Return how many steps have ended."""
        ...

    def durations_since(self, moment: float) -> list[float]:
        """Return the seconds of the steps that began and ended after a moment."""
        ...


class Lines:
    """The iteration times that nanoGPT prints."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._taken: list[float] = []
        self._before = 0

    def _all(self) -> list[float]:
        found = re.findall(r"^iter \d+: .*?time ([\d.]+)ms", self._path.read_text(errors="replace"), re.MULTILINE)
        return [float(milliseconds) / 1000 for milliseconds in found]

    def count(self) -> int:
        """Return how many iterations were printed."""
        return len(self._all())

    def mark(self) -> None:
        """Begin `durations_since` here."""
        self._before = len(self._all())

    def durations_since(self, moment: float) -> list[float]:
        """Return the seconds of the iterations since `mark`, without the one that a pause was within."""
        del moment
        return self._all()[self._before + 1 :]


@dataclass
class Contender:
    """A loop that runs, or is paused."""

    name: str
    ranks: Ranks
    clock: Clock

    def rate(self, steps: int, tokens: int) -> float:
        """Let it run so many steps after the one in which it was paused, and return its tokens a second."""
        if isinstance(self.clock, Lines):
            self.clock.mark()
        began = time.monotonic()
        self.ranks.go_on()
        while len(durations := self.clock.durations_since(began)) < steps:
            time.sleep(0.02)
            self.ranks.check()
        self.ranks.pause()
        return steps * tokens / sum(durations[:steps])


class Bench:
    """Starts loops and lets them run in turn."""

    def __init__(self, folder: Path, rounds: int, steps: int, nanogpt: Path | None) -> None:
        self._folder, self._rounds, self._steps = folder, rounds, steps
        self._nanogpt = nanogpt
        self._started = 0
        self._corpus = corpus.prepare(Config(), folder / "data")

    def _start(self, name: str, world_size: int, options: dict[str, Any]) -> Contender:
        self._started += 1
        folder = self._folder / f"{self._started}-{name}"
        folder.mkdir()
        log = folder / "log"
        variables = {"TORCHRUN_RUN_DIR": str(folder / "run"), "TORCHRUN_DATA_DIR": str(self._folder / "data")}
        if name == "nanogpt":
            command, clock = self._nanogpt_command(folder, replace(Config(), **options)), Lines(log)
            return Contender(name, Ranks(command, 1, log, variables, prefixes=[["env", "-C", str(folder)]]), clock)
        ticks = Ticks(folder / "ticks", create=True)
        settings = {"ticks": str(folder / "ticks"), "folder": str(self._corpus), "options": options}
        command = [sys.executable, str(ROOT / "bench/loops.py"), name, json.dumps(settings)]
        return Contender(name, Ranks(command, world_size, log, variables), ticks)

    def _nanogpt_command(self, folder: Path, config: Config) -> list[str]:
        """Return how nanoGPT is run with the same model and corpus; it finds its files in the working folder."""
        checkout = self._nanogpt
        if checkout is None:
            raise RuntimeError("no nanoGPT checkout was given")
        data = folder / "data/bench"
        data.mkdir(parents=True)
        about = json.loads((self._corpus / "about.json").read_text())
        tokens = np.fromfile(self._corpus / "tokens.bin", dtype=about["dtype"]).astype(np.uint16)
        tokens.tofile(data / "train.bin")
        tokens[: 10 * config.block_size].tofile(data / "val.bin")
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": about["vocab_size"]}))
        (folder / "configurator.py").symlink_to(checkout / "configurator.py")
        options = {
            "dataset": "bench", "device": "cpu", "compile": False, "dtype": "float32", "eval_interval": STEPS,
            "eval_iters": 1, "log_interval": 1, "gradient_accumulation_steps": 1, "max_iters": STEPS, "dropout": 0.0,
            "batch_size": config.batch_size, "block_size": config.block_size, "n_layer": config.layers,
            "n_head": config.heads, "n_embd": config.width, "learning_rate": config.lr, "lr_decay_iters": STEPS,
            "warmup_iters": config.warmup, "out_dir": str(folder / "out"),
        }  # fmt: skip
        words = [f"--{name}={value}" for name, value in options.items()]
        return [sys.executable, "-u", str(checkout / "train.py"), *words]

    def row(self, names: Sequence[str], world_size: int, options: dict[str, Any]) -> dict[str, list[float]]:
        """Return the tokens a second of each loop in each round."""
        with ExitStack() as stack:
            contenders = []
            for name in names:
                if name == "nanogpt" and self._nanogpt is None:
                    continue
                contender = self._start(name, world_size, options)
                stack.enter_context(contender.ranks)
                while contender.clock.count() < WARM_UP[world_size]:
                    contender.ranks.check()
                    time.sleep(0.1)
                contender.ranks.pause()
                contenders.append(contender)
            config = replace(Config(), **options)
            tokens = config.batch_size * config.block_size
            rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
            for number in range(self._rounds):
                first = number % len(contenders)  # nobody always comes after the same one
                for contender in contenders[first:] + contenders[:first]:
                    rates[contender.name].append(contender.rate(self._steps, tokens))
            return rates


def judged(name: str, rates: dict[str, list[float]]) -> dict[str, Any]:
    """Return a row with the trainer's ratio to each loop, and whether each reaches its bar."""
    ratios = {}
    for other, values in rates.items():
        if other == "trainer":
            continue
        ratio = spread([ours / theirs for ours, theirs in zip(rates["trainer"], values, strict=True)])
        bar: float | None = 1.0
        if name.startswith("defaults"):
            bar = DEFAULTS
        elif other == "plain":
            bar = PLAIN if name.endswith("x 1") else None
        # A round of a loop that met no other work is as fast as the loop can be.
        quiet = max(rates["trainer"]) / max(values)
        met = None if bar is None else ratio["median"] >= bar
        ratios[other] = {**ratio, "of_the_fastest_rounds": quiet, "bar": bar, "met": met}
    medians = {other: statistics.median(values) for other, values in rates.items()}
    return {"row": name, "tokens_per_s": medians, "ratios": ratios, "rounds": rates}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the ratios of each row, with the least and greatest of the rounds."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    loops = ("plain", "accelerate", "fabric", "nanogpt_style", "nanogpt")
    names = [name for name in loops if any(name in row["ratios"] for row in rows)]
    for place, name in enumerate(names):
        found = [(number, row["ratios"][name]) for number, row in enumerate(rows) if name in row["ratios"]]
        at = [number + 0.16 * (place - (len(names) - 1) / 2) for number, _ in found]
        medians = [ratio["median"] for _, ratio in found]
        low = [ratio["median"] - ratio["least"] for _, ratio in found]
        high = [ratio["greatest"] - ratio["median"] for _, ratio in found]
        axes.bar(at, medians, 0.15, yerr=[low, high], label=f"against {name.replace('_', '-')}", error_kw={"lw": 0.8})
    axes.axhline(1, color="black", lw=0.8)
    axes.set_xticks(range(len(rows)), [row["row"] for row in rows])
    axes.set(ylabel="tokens/s of the trainer / tokens/s of the other", title="Median and range of the rounds")
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the rows and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT, to run its own train.py too")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each row (default 20)")
    parser.add_argument("--steps", type=int, default=12, help="steps of each loop in a round (default 12)")
    parser.add_argument("--row", action="append", help="only these, and no files, such as 'float32 x 1'")
    arguments = parser.parse_args()
    nanogpt = arguments.nanogpt.resolve() if arguments.nanogpt else None
    clean_up_when_ended()
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as folder:
        bench = Bench(Path(folder), arguments.rounds, arguments.steps, nanogpt)
        wanted: list[tuple[str, Sequence[str], int, dict[str, Any]]] = []
        for precision in ("float32", "bfloat16"):
            for world_size in (1, 2):
                names: list[str] = ["trainer", "plain", "accelerate", "fabric"]
                if precision == "float32" and world_size == 1:
                    names.append("nanogpt")
                # None of the others takes checkpoints.
                options = {"steps": STEPS, "precision": precision, "checkpoint_every": STEPS, "resume": "never"}
                wanted.append((f"{precision} x {world_size}", names, world_size, options))
        for name, shape in (("defaults", {}), ("defaults, larger", LARGER)):
            wanted.append((name, ["trainer", "nanogpt_style", "nanogpt"], 1, {"steps": STEPS, **shape}))
        for name, loops, world_size, options in wanted:
            if arguments.row and name not in arguments.row:
                continue
            rows.append(judged(name, bench.row(loops, world_size, options)))
            print(name, {other: round(ratio["median"], 3) for other, ratio in rows[-1]["ratios"].items()}, flush=True)
    lines = []
    for row in rows:
        rates = row["tokens_per_s"]
        for other, ratio in row["ratios"].items():
            between = f"{ratio['least']:.3f} to {ratio['greatest']:.3f}"
            bar = ("-", "") if ratio["bar"] is None else (ratio["bar"], "met" if ratio["met"] else "NOT met")
            speeds = (round(rates["trainer"]), round(rates[other]))
            lines.append((row["row"], other, *speeds, ratio["median"], ratio["of_the_fastest_rounds"], between, *bar))
    print(table(("row", "against", "tokens/s", "theirs", "ratio", "fastest", "rounds", "bar", ""), lines))
    if arguments.row:
        return
    result = {
        "what": "tokens/s of the trainer over tokens/s of others, at the same model, corpus, batch and precision",
        "config": {name: asdict(Config())[name] for name in LARGER},
        "larger": LARGER,
        "threads": "two for one process, one each for two",
        "versions": {"accelerate": version("accelerate"), "lightning-fabric": version("lightning-fabric")},
        "machine": machine(),
        "rows": rows,
    }
    draw(rows, save("trainer", result))


if __name__ == "__main__":
    main()
