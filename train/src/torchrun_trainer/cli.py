"""Put the parts together: options, process group, data, model, checkpoint, training, report."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler, record

from torchrun_trainer import data, distributed, hardware, options, report, run_lock
from torchrun_trainer.balance import Balancer
from torchrun_trainer.config import Config
from torchrun_trainer.distributed import Place
from torchrun_trainer.errors import RankError, StorageError, TrainerError
from torchrun_trainer.loop import Result, Run, train
from torchrun_trainer.metrics import Metrics, current, read_events
from torchrun_trainer.model import build, difference, make_optimizer, shape_of
from torchrun_trainer.monitor import Monitor, Work
from torchrun_trainer.progress import progress_for
from torchrun_trainer.state import Keeper

# Options that cannot work, a disk that is full: a run that is started again fails again.
EXIT_USAGE = 2
# As of any exception: another start may succeed.
EXIT_AGAIN = 1


def run_folder() -> Path:
    """Return where this run keeps its files."""
    return Path(os.environ.get("TORCHRUN_RUN_DIR", "runs/local"))


def data_folder() -> Path:
    """Return where prepared data is, for all runs."""
    return Path(os.environ.get("TORCHRUN_DATA_DIR", "~/.cache/torchrun_trainer")).expanduser()


def work_of(model: torch.nn.Module, dataset: Any, config: Config, place: Place) -> Work:
    """Return what a sample is. FLOPs are counted where the peak is known: on GPUs."""
    tokens = config.block_size if config.task == "lm" and not config.dataset else 1
    peaks = [numbers[0] for numbers in distributed.gather_numbers([hardware.peak_flops(place.device) or 0.0], place)]
    if not all(peaks):
        return Work(tokens)
    batch = data.Loader(dataset, config.seed, place.device, 0).take([range(1)], [])[0]
    return Work(tokens, hardware.flops_of(model, batch), sum(peaks))


def run(config: Config, place: Place, stop: distributed.StopRequest) -> Result:
    """Train, and leave metrics, checkpoints and the report in the run folder."""
    config.check(place.world_size)
    with stop.ends_at_once():
        prepared = distributed.on_main(lambda: data.prepare(config, data_folder()), place)
    dataset = distributed.together(lambda: data.load(config, prepared))
    model = make_model(config, dataset, place)
    optimizer = make_optimizer(config, model)
    scaler = torch.amp.GradScaler(place.device.type, enabled=place.precision == "float16")
    balancer = Balancer(config.batch_size, place.world_size, config.balance == "auto", config.rebalance_above)
    # Nothing is written before all that the options ask for is known to be possible.
    folder, progress = run_folder(), progress_for(place.is_main, config.steps)
    lock = distributed.together(lambda: run_lock.hold(folder, progress.say) if place.is_main else None)
    metrics = distributed.together(lambda: Metrics(folder if place.is_main else None, config.tensorboard))
    keeper = Keeper(folder / "checkpoints", config, place, metrics, progress)
    chosen = distributed.on_main(keeper.choose, place)
    started = distributed.together(lambda: keeper.resume(chosen, model, optimizer, scaler, balancer))
    distributed.on_main(lambda: options.save(folder, config), place)  # now that nothing is refused any more
    parameters = sum(parameter.numel() for parameter in model.parameters())
    entropy, unit = getattr(dataset, "unigram_entropy", None), getattr(dataset, "unit", "sample")
    description = getattr(dataset, "description", config.dataset)
    metrics.event(
        "start",
        world_size=place.world_size,
        start_step=started.step,
        steps=config.steps,
        device=place.device.type,
        backend=place.backend,
        precision=place.precision,
        parameters=parameters,
        batch_size=config.batch_size,
        samples_by_rank=list(balancer.plan),
        unit=unit,
        unigram_entropy=entropy,
        corpus=description,
    )
    progress.say(
        f"world size {place.world_size} on {place.device.type}, {place.precision}; {parameters:,} parameters; "
        + description
        + (f", unigram entropy {entropy:.3f}" if entropy else "")
        + (f"; going on from step {started.step}" if started.step else "")
    )
    if started.step >= config.steps:
        progress.say(f"all {config.steps} steps are done already: give more --steps to go on")
    monitor = Monitor(metrics, progress, place, config.steps, work_of(model, dataset, config, place))
    loader = data.Loader(dataset, config.seed, place.device, config.loader_threads)
    everything = Run(
        config, place, model, optimizer, scaler, loader, balancer, monitor, stop, keeper.save, keeper.problem, started
    )
    result = train(everything)
    loader.close()
    distributed.expect_the_end()
    distributed.on_main(lambda: finish(folder, result, metrics, keeper), place)
    run_lock.release(lock)
    progress.close()
    if place.is_main:
        loss = "" if result.loss is None else f", loss {result.loss:.4f}"
        progress.say(f"{result.status} after step {result.progress.step}{loss}; report: {folder / 'report.html'}")
    return result


def make_model(config: Config, dataset: Any, place: Place) -> torch.nn.Module:
    """Return the model on the device, with the same weights on all ranks. Raises TrainerError, on all ranks."""

    def on_this_rank() -> torch.nn.Module:
        torch.manual_seed(config.seed)
        try:
            return build(config, dataset).to(place.device)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate" not in str(error) and "out of memory" not in str(error):
                raise
            raise TrainerError(f"The model does not fit into the memory of {place.host}: make it smaller.") from error

    model = distributed.together(on_this_rank)
    problem = difference(distributed.gather_all(shape_of(model)))
    if problem:
        raise TrainerError(problem)
    return model


def finish(folder: Path, result: Result, metrics: Metrics, keeper: Keeper) -> None:
    """Wait for the last checkpoint, and write the last event and the report; rank 0 only. Raises TrainerError."""
    keeper.finish()
    events = current(read_events(folder / "metrics.jsonl"))
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
    events = current(read_events(folder / "metrics.jsonl"))
    report.write(target, os.environ.get("TORCHRUN_JOB", folder.name), events)


def complain(error: TrainerError) -> None:
    """Print a sentence, once: rank 0's, or that of a rank alone, such as one that could not join.

    The others leave it in torchrun's error file: their node may be the first to tell how the job has failed.
    """
    if os.environ.get("RANK", "0") == "0" or not dist.is_initialized() or isinstance(error, RankError):
        print(f"torchrun_trainer: {error}", file=sys.stderr, flush=True)  # noqa: T201
    else:
        with suppress(OSError):
            get_error_handler().record_exception(error)


@record
def main() -> None:
    """Run from the command line; what the user can mend is one sentence on stderr, and an exit status."""
    hardware.keep_freed_memory()
    try:
        config = options.parse()
        place = distributed.join(config)
        # Not earlier: a process that still waits for the others is ended by the signal itself.
        run(config, place, distributed.StopRequest())
        distributed.leave()
    except TrainerError as error:
        complain(error)
        sys.exit(EXIT_AGAIN if isinstance(error, StorageError) else EXIT_USAGE)
