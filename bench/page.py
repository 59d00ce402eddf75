"""Writes docs/performance.md from bench/results/*.json: the page says what was measured, and nothing else.

.venv/bin/python bench/page.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/performance.md"
HEAD = """# Performance

Written by `bench/page.py` from `bench/results/`. Every figure is a ratio of things measured side by side in one run, so
that a busy machine slows both. Each section names the command that measures it again.

"""


def result_of(name: str) -> dict[str, Any]:
    """Return what a bench has written."""
    found: dict[str, Any] = json.loads((ROOT / f"bench/results/{name}.json").read_text())
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def verdict(met: bool | None) -> str:
    """Return the word for a bar that was reached, or not."""
    return "" if met is None else "met" if met else "not met"


def machine(result: dict[str, Any]) -> str:
    """Return what it was measured on."""
    about = result["machine"]
    return f"{about['cpu']}, {about['cores']} shared cores, torch {about['torch']}."


def trainer() -> list[str]:
    """Return the section on the trainer's speed."""
    result = result_of("trainer")
    rows = [
        (
            row["row"], other.replace("_", "-"), f"{ratio['median']:.2f}", f"{ratio['of_the_fastest_rounds']:.2f}",
            f"{ratio['least']:.2f} to {ratio['greatest']:.2f}", ratio["bar"] or "", verdict(ratio["met"]),
        )
        for row in result["rows"] for other, ratio in row["ratios"].items()
    ]  # fmt: skip
    rounds = len(result["rows"][0]["rounds"]["trainer"])
    return [
        "## The trainer against other loops",
        f"`bench/trainer.py --rounds {rounds}`: tokens/s of the trainer over those of the other, same model, corpus, "
        f"batch and precision. {machine(result)} A row is precision x processes.",
        "`nanogpt-style` is a loop written in the manner of nanoGPT's defaults on a CPU; nanoGPT itself runs with "
        "`--nanogpt CHECKOUT`.",
        "",
        *table(("row", "against", "median", "fastest rounds", "all rounds", "bar", ""), rows),
        "",
        "![ratios](../bench/results/trainer.png)",
    ]


def unequal() -> list[str]:
    """Return the section on nodes of unequal speed."""
    result = result_of("unequal")
    rows = [
        (name, f"{share['median']:.3f}", f"{share['least']:.3f} to {share['greatest']:.3f}", result["bars"][name])
        for name, share in result["shares"].items()
    ]
    return [
        "## Unequal nodes",
        f"`bench/unequal.py --rounds {len(result['rounds'])}`: two ranks, one stopped half of the time; samples/s "
        f"together over the sum of their solo speeds. {machine(result)} The losses of both modes differ by at most "
        f"{result['largest_relative_difference_of_losses']:.1e}.",
        "",
        *table(("balance", "median", "rounds", "bar"), rows),
        "",
        "![speeds and losses](../bench/results/unequal.png)",
    ]


def slow_link() -> list[str]:
    """Return the section on slow links."""
    result = result_of("slow_link")
    rows = [
        (name, f"{result['tokens_per_s'][name]['median']:.0f}", f"{ratio['median']:.2f}",
         f"{result['communication_share'][name]:.2f}", f"{result['loss'][name]:.3f}")
        for name, ratio in result["ratio_to_none"].items()
    ]  # fmt: skip
    return [
        "## Slow links",
        f"`bench/slow_link.py --rate {result['mbit_per_s']}`: two ranks over a link of {result['mbit_per_s']} Mbit/s, "
        f"by `--comm-hook`. {machine(result)}",
        "",
        *table(("hook", "tokens/s", "over none", "share of waiting", "loss at the end"), rows),
        "",
        "![tokens/s](../bench/results/slow_link.png)",
    ]


def checkpoint() -> list[str]:
    """Return the section on checkpoints."""
    result = result_of("checkpoint")
    rows = [
        (kind, *(f"{found[name]['median']:.3f} s" for name in ("added_to_its_step", "added_to_later_steps")))
        for kind, found in result["medians"].items()
    ]
    return [
        "## Checkpoints",
        f"`bench/checkpoint.py`: what a checkpoint of {result['bytes'] / 1e6:.0f} MB adds to the step that takes it, "
        f"and to those after it, which share the cores with the writer here. In the background over in the foreground: "
        f"{result['ratio']:.3f} (bar {result['bar']}, {verdict(result['met'])}); with the later steps counted, "
        f"{result['ratio_with_later_steps']:.2f}. {machine(result)}",
        "",
        *table(("written in the", "its step", "later steps"), rows),
        "",
        "![seconds](../bench/results/checkpoint.png)",
    ]


def launch() -> list[str]:
    """Return the section on launching."""
    result = result_of("launch")
    by_hand, ours = result["medians"]["by_hand"], result["medians"]["train_yml"]
    return [
        "## Launching",
        f"`bench/launch.py`: from the command to the first optimizer step on {result['nodes']} nodes, over parallel "
        f"SSH sessions with torchrun typed by hand: {result['ratio']:.2f} ({ours:.1f} s and {by_hand:.1f} s).",
    ]


SECTIONS: tuple[Callable[[], list[str]], ...] = (trainer, unequal, slow_link, checkpoint, launch)


def page() -> str:
    """Return the text of the page."""
    return HEAD + "\n\n".join("\n".join(section()) for section in SECTIONS) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))
