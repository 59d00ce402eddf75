"""Put the parts together: options, process group, corpus, model, checkpoint, training, report."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import tyro
from torch.distributed.elastic.multiprocessing.errors import record

from torchrun_trainer import checkpoint, data, distributed, report
from torchrun_trainer.checkpoint import Progress
from torchrun_trainer.config import Config
from torchrun_trainer.distributed import Place
from torchrun_trainer.errors import TrainerError
from torchrun_trainer.loop import Result, Run, train
from torchrun_trainer.metrics import Metrics, read_events
from torchrun_trainer.model import GPT, parameter_groups

# Options that cannot work: started again, they would fail again.
EXIT_USAGE = 2


def run_folder() -> Path:
    """Return where this run keeps its files."""
    return Path(os.environ.get("TORCHRUN_RUN_DIR", "runs/local"))


def data_folder() -> Path:
    """Return where prepared corpora are, for all runs."""
    return Path(os.environ.get("TORCHRUN_DATA_DIR", "~/.cache/torchrun_trainer")).expanduser()


def shared_corpus(config: Config, place: Place) -> data.Corpus:
    """Let rank 0 prepare the corpus, and return it on every rank."""
    found: data.Corpus | str = ""
    if place.is_main:
        try:
            found = data.prepare(config.data, data_folder())
        except TrainerError as error:
            found = str(error)
    found = distributed.share(found)
    if isinstance(found, str):
        raise TrainerError(found)
    return found


def newest_checkpoint(config: Config, place: Place, metrics: Metrics) -> Path | None:
    """Return the checkpoint to go on from, chosen by rank 0 for all, or None to begin."""
    if config.resume == "never":
        return None
    choice: tuple[str, str] = ("", "")
    if place.is_main:
        try:
            path, warnings = checkpoint.newest_readable(run_folder() / "checkpoints", config)
            for warning in warnings:
                metrics.say(f"warning: {warning}")
            choice = (str(path or ""), "")
        except TrainerError as error:
            choice = ("", str(error))
    path_text, problem = distributed.share(choice)
    if problem:
        raise TrainerError(problem)
    return Path(path_text) if path_text else None


def run(config: Config, place: Place, stop: distributed.StopRequest) -> Result:
    """Train, and leave metrics, checkpoints and the report in the run folder."""
    config.check(place.world_size)
    torch.manual_seed(config.seed)
    folder = run_folder()
    metrics = Metrics(folder / "metrics.jsonl" if place.is_main else None)
    corpus = shared_corpus(config, place)
    samples = data.Samples(corpus, config.block_size, config.seed)
    model = GPT(config).to(place.device)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, config.weight_decay), lr=config.lr, betas=(0.9, 0.95), fused=True
    )
    path = newest_checkpoint(config, place, metrics)
    progress = checkpoint.load(path, model, optimizer, place.device) if path else Progress()
    if place.is_main:
        for sentence in checkpoint.set_aside_newer(folder / "checkpoints", progress.step):
            metrics.say(f"warning: {sentence}")
    metrics.event(
        "start",
        world_size=place.world_size,
        start_step=progress.step,
        steps=config.steps,
        device=place.device.type,
        backend=place.backend,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        batch_size=config.batch_size,
        unigram_entropy=corpus.unigram_entropy,
        corpus=f"{corpus.source}: {corpus.files:,} files, {corpus.size:,} bytes",
    )
    metrics.say(
        f"world size {place.world_size} on {place.device.type}; {corpus.size:,} bytes of {corpus.source}, "
        f"unigram entropy {corpus.unigram_entropy:.3f}" + (f"; going on from step {progress.step}" if path else "")
    )
    if progress.step >= config.steps:
        metrics.say(f"all {config.steps} steps are done already: give more --steps to go on")
    result = train(Run(config, place, model, optimizer, samples, progress, folder / "checkpoints", metrics, stop))
    if place.is_main:
        finish(folder, result, metrics)
    return result


def finish(folder: Path, result: Result, metrics: Metrics) -> None:
    """Write the last event and the report."""
    events = read_events(folder / "metrics.jsonl")
    earlier = [event for event in events if event["event"] == "step"]
    if result.loss is None and earlier:  # nothing was left to do: the loss is that of before
        result = replace(result, loss=earlier[-1]["loss"], samples_per_s=earlier[-1]["samples_per_s"])
    target = folder / "report.html"
    metrics.event(
        "end",
        step=result.progress.step,
        loss=result.loss,
        samples_per_s=result.samples_per_s,
        status=result.status,
        report=str(target.absolute()),
    )
    metrics.close()
    report.write(target, os.environ.get("TORCHRUN_JOB", folder.name), read_events(folder / "metrics.jsonl"))
    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    print(f"{result.status} after step {result.progress.step}{loss}; report: {target}", flush=True)  # noqa: T201


@record
def main() -> None:
    """Run from the command line; what the user can mend is one sentence on stderr and exit status 2."""
    config = tyro.cli(Config, prog="torchrun_trainer")
    try:
        place = distributed.join(config)
        # Not earlier: a process that still waits for the others is ended by the signal itself.
        run(config, place, distributed.StopRequest())
        distributed.leave()
    except TrainerError as error:
        if os.environ.get("RANK", "0") == "0" or not dist.is_initialized():
            print(f"torchrun_trainer: {error}", file=sys.stderr, flush=True)  # noqa: T201
        sys.exit(EXIT_USAGE)
