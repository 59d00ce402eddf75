"""report.html: the run on one page that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchrun_trainer.errors import writing

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 280, 48, 28

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; --line: #1f6feb; --second: #bc4c00; --grid: #8884; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2rem auto; padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }} svg text {{ fill: currentColor; font-size: 11px; }}
table {{ border-collapse: collapse; }} td {{ padding: .15rem 1.5rem .15rem 0; }} td:first-child {{ opacity: .7; }}
h2 {{ font-size: 1.05rem; margin-top: 2rem; }}
</style></head><body>
<h1>{title}</h1>
<table>{rows}</table>
<h2>Loss (nats per {unit}) by step</h2>{loss}
<h2>Samples per second by step</h2>{rate}
</body></html>
"""


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return evenly spaced values from low to high."""
    return [low + (high - low) * index / (count - 1) for index in range(count)]


def chart(
    points: Sequence[tuple[float, float]], color: str, floor: float | None, line: tuple[float, str] | None
) -> str:
    """Return an SVG of a curve. `floor` fixes the lower end of the axis; `line` is a horizontal (value, label)."""
    if not points:
        return "<p>nothing was measured</p>"
    values = [value for _, value in points] + ([line[0]] if line else [])
    low = min(values) if floor is None else floor
    high = max(values)
    high = high if high > low else low + 1
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)

    def place(step: float, value: float) -> tuple[float, float]:
        return (
            LEFT + (step - first) / (last - first) * (WIDTH - LEFT - 8),
            HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - 12),
        )

    parts = []
    for value in ticks(low, high):
        y = place(first, value)[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--grid)"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for step in ticks(first, last):
        x = place(step, low)[0]
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{step:.0f}</text>')
    if line:
        y = place(first, line[0])[1]
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--second)" '
            'stroke-dasharray="5 4"/>'
            f'<text x="{WIDTH - 10}" y="{y - 5:.1f}" text-anchor="end">{html.escape(line[1])}</text>'
        )
    path = " ".join("{:.1f},{:.1f}".format(*place(step, value)) for step, value in points)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def write(path: Path, job: str, events: Sequence[dict[str, Any]]) -> None:
    """Write the report of all events of a run folder, restarts included, atomically. Raises TrainerError."""
    starts = [event for event in events if event["event"] == "start"]
    steps = [event for event in events if event["event"] == "step"]
    ends = [event for event in events if event["event"] == "end"]
    start, end = (starts or [{}])[-1], (ends or [{}])[-1]
    # After a restart some steps were done twice: the last time counts.
    by_step = {event["step"]: event for event in steps}
    curve = [by_step[step] for step in sorted(by_step)]
    entropy, unit = start.get("unigram_entropy"), start.get("unit", "byte")
    facts = {
        "status": end.get("status"),
        "world size": start.get("world_size"),
        "device, backend, precision": f"{start.get('device')}, {start.get('backend')}, {start.get('precision')}",
        "steps": f"{end.get('step')} of {start.get('steps')}",
        "final loss": f"{end['loss']:.4f} nats per {unit}" if end.get("loss") is not None else None,
        "unigram entropy of the corpus": f"{entropy:.4f} nats per {unit}" if entropy else None,
        "samples per second": f"{end['samples_per_s']:.1f}" if end.get("samples_per_s") is not None else None,
        "samples a step": start.get("batch_size"),
        "parameters": f"{start['parameters']:,}" if start.get("parameters") else None,
        "data": start.get("corpus"),
        "starts": len(starts),
    }
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>"
        for name, value in facts.items()
        if value is not None
    )
    line = (entropy, "unigram entropy") if entropy else None
    page = PAGE.format(
        title=html.escape(f"Training run {job}"),
        rows=rows,
        unit=unit,
        loss=chart(
            [(event["step"], event["loss"]) for event in curve if event["loss"] is not None], "var(--line)", None, line
        ),
        # The first line of a start has no speed yet.
        rate=chart(
            [(event["step"], event["samples_per_s"]) for event in curve if event["samples_per_s"]],
            "var(--line)",
            0.0,
            None,
        ),
    )
    temporary = path.with_name(f".{path.name}.new")
    with writing(path):
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(path)
