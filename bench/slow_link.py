"""Tokens a second over a slow link with each communication hook.

    sudo .venv/bin/python bench/slow_link.py [--rate 50] [--rounds 3]

Two network namespaces are joined by a pair of virtual interfaces whose both ends send at that many Mbit/s and no more
(tc's token bucket); one rank trains in each. Needs root and Linux; namespaces and interfaces are removed at the end.
The hooks are lossy, so the loss after the same steps stands beside the speed. Writes bench/results/slow_link.json and
slow_link.png.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from side_by_side import (
    Ranks,
    clean_up_when_ended,
    events,
    free_port,
    machine,
    pyplot,
    save,
    speed,
    spread,
    table,
    trainer_command,
)

HOOKS = ("none", "bf16", "powersgd")
# powersgd sends whole gradients for ten steps; then the speed of its own begins.
FIRST_STEP, STEPS = 20, 60
BATCH, BLOCK = 36, 96
NETWORK = "10.213.{}.{}"


def run(*words: str) -> None:
    """Run a command. Raises RuntimeError with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


@contextmanager
def slow_link(rate: int) -> Iterator[list[tuple[str, str, str]]]:
    """Make two namespaces joined by a slow link; yield (namespace, interface, address) of each."""
    mark = os.getpid() % 10000
    ends = [(f"slow{mark}-{number}", f"sl{mark}-{number}", NETWORK.format(mark % 250, number)) for number in (1, 2)]
    try:
        for namespace, _, _ in ends:
            run("ip", "netns", "add", namespace)
        (first, one, _), (second, other, _) = ends
        run("ip", "link", "add", one, "netns", first, "type", "veth", "peer", "name", other, "netns", second)
        for namespace, interface, address in ends:
            inside = ("ip", "-netns", namespace)
            run(*inside, "address", "add", f"{address}/24", "dev", interface)
            run(*inside, "link", "set", interface, "up")
            run(*inside, "link", "set", "lo", "up")
            bucket = ("tbf", "rate", f"{rate}mbit", "burst", "64kb", "latency", "200ms")
            run("tc", "-netns", namespace, "qdisc", "add", "dev", interface, "root", *bucket)
        yield ends
    finally:
        for namespace, _, _ in ends:  # with it go the interfaces in it
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def train(hook: str, folder: Path, data: Path, ends: list[tuple[str, str, str]]) -> tuple[float, float, float]:
    """Train with a hook; return tokens/s, the loss of the last step, and the share of communication."""
    options = {
        "steps": STEPS, "batch_size": BATCH, "block_size": BLOCK, "comm_hook": hook, "balance": "equal",
        "checkpoint_every": 10 * STEPS, "resume": "never",
    }  # fmt: skip
    variables = {"TORCHRUN_RUN_DIR": str(folder), "TORCHRUN_DATA_DIR": str(data)}
    variables |= {"MASTER_ADDR": ends[0][2], "MASTER_PORT": str(free_port())}
    of_rank = [{"GLOO_SOCKET_IFNAME": interface, "TORCHRUN_HOST": namespace} for namespace, interface, _ in ends]
    prefixes = [["ip", "netns", "exec", namespace] for namespace, _, _ in ends]
    with Ranks(
        trainer_command(options), 2, folder.with_suffix(".log"), variables, prefixes=prefixes, of_rank=of_rank
    ) as ranks:
        ranks.wait(900)
    last = events(folder, "step")[-1]
    return speed(folder, BATCH, FIRST_STEP) * BLOCK, float(last["loss"]), float(last["communication_share"])


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw each hook's speed."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for place, hook in enumerate(HOOKS):
        rates = result["tokens_per_s"][hook]
        error = [[rates["median"] - rates["least"]], [rates["greatest"] - rates["median"]]]
        axes.bar(place, rates["median"], 0.6, yerr=error)
        axes.annotate(f"loss {result['loss'][hook]:.3f}", (place, 0), (0, 4), textcoords="offset points", ha="center")
    axes.set_xticks(range(len(HOOKS)), HOOKS)
    title = f"Two ranks over {result['mbit_per_s']} Mbit/s; {result['best']} is {result['ratio']:.2f} x none"
    axes.set(ylabel="tokens/s", title=title)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the rounds and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=50, help="Mbit/s of the link in each direction (default 50)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all hooks, in turn (default 3)")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench/slow_link: network namespaces need root: start it with sudo.")
    clean_up_when_ended()
    found: dict[str, list[tuple[float, float, float]]] = {hook: [] for hook in HOOKS}
    try:
        with slow_link(arguments.rate) as ends, tempfile.TemporaryDirectory(prefix="bench-slow-link-") as name:
            for number in range(1, arguments.rounds + 1):
                for hook in HOOKS:
                    found[hook].append(train(hook, Path(name, f"{number}-{hook}"), Path(name, "data"), ends))
                said = ", ".join(f"{hook} {found[hook][-1][0]:.0f} tokens/s" for hook in HOOKS)
                print(f"round {number}: {said}", flush=True)
    except (RuntimeError, FileNotFoundError) as error:
        sys.exit(f"bench/slow_link: {error}")
    ratios = {hook: spread([a[0] / b[0] for a, b in zip(found[hook], found["none"], strict=True)]) for hook in HOOKS}
    best = max(HOOKS, key=lambda hook: ratios[hook]["median"])
    result: dict[str, Any] = {
        "what": "tokens/s of two ranks over a slow link by communication hook",
        "mbit_per_s": arguments.rate,
        "steps": [FIRST_STEP, STEPS],
        "tokens_per_s": {hook: spread([rate for rate, _, _ in found[hook]]) for hook in HOOKS},
        "ratio_to_none": ratios,
        "loss": {hook: found[hook][-1][1] for hook in HOOKS},
        "communication_share": {hook: statistics.median(share for _, _, share in found[hook]) for hook in HOOKS},
        "best": best,
        "ratio": ratios[best]["median"],
        "machine": machine(),
    }
    rates, shares = result["tokens_per_s"], result["communication_share"]
    lines = [
        (hook, round(rates[hook]["median"]), ratios[hook]["median"], shares[hook], result["loss"][hook])
        for hook in HOOKS
    ]
    print(table(("hook", "tokens/s", "against none", "communication", f"loss at {STEPS}"), lines))
    draw(result, save("slow_link", result))


if __name__ == "__main__":
    main()
