"""DDP around the model, with the gradients compressed on the way if that is wanted, and their time taken."""

# No postponed annotations here: DDP looks at those of a communication hook.

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from torchrun_trainer.config import Config
from torchrun_trainer.distributed import Place
from torchrun_trainer.errors import RankError
from torchrun_trainer.timing import StepTimer

# powerSGD sends whole gradients for the first steps, which change most.
POWERSGD_START = 10
# What DDP says of a model whose steps differ.
OTHER_GRAPH = ("Expected to have finished reduction", "graph has changed")


class Replica:
    """The model of this rank. Called with a batch it returns the losses; its gradients are averaged over all ranks."""

    def __init__(
        self, model: nn.Module, config: Config, place: Place, timer: StepTimer, *, resumed: bool = False
    ) -> None:
        self._timer, self._config = timer, config
        self._state: Any = None
        self._ddp: DistributedDataParallel | None = None
        # A rank alone has nobody to average with.
        if place.world_size > 1:
            self._ddp = DistributedDataParallel(
                model,
                device_ids=[place.device] if place.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                find_unused_parameters=not config.static_graph,
                # DDP learns a static graph in the first step, which an accumulating one would hide.
                static_graph=config.static_graph and not config.micro_batch,
            )
            self._inner, self._state = hook_of(config)
            self._ddp.register_comm_hook(None, self._hook)
        module: nn.Module = self._ddp or model
        self._forward: Callable[..., torch.Tensor] = torch.compile(module) if config.compile else module
        if resumed:
            self.forget()

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the losses of a batch."""
        return self._forward(*batch)

    def forget(self) -> None:
        """Drop the errors that powersgd feeds back: so a run that is resumed here is the same as one that goes on.

        They are as large as the model, on each rank, and no part of a checkpoint. For two steps gradients are whole:
        DDP orders its buckets anew after the first one of a start.
        """
        if isinstance(self._state, powerSGD_hook.PowerSGDState):
            self._state = hook_of(self._config)[1]
            self._state.iter = POWERSGD_START - 2

    def _hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Note when gradients are ready: after the last bucket of a step only waiting is left."""
        del state
        self._timer.mark("ready")
        return self._inner(self._state, bucket)

    @contextmanager
    def syncing(self, last: bool) -> Iterator[None]:
        """Be around the forward and backward pass of a micro-batch: only the last of a step exchanges gradients.

        Raises RankError where the model does not use the parameters that DDP expects.
        """
        try:
            with nullcontext() if last or self._ddp is None else self._ddp.no_sync():
                yield
        except RuntimeError as error:
            if self._config.static_graph and any(words in str(error) for words in OTHER_GRAPH):
                raise RankError(
                    "The model did not use all of its parameters, or not the same in all steps: give --no-static-graph."
                ) from error
            raise


def powersgd(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average with powerSGD, one bucket after the other: on gloo its chained reductions would meet in another order."""
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()  # on a GPU the stream waits, not the processor
    return future


def hook_of(config: Config) -> tuple[Any, Any]:
    """Return (the hook that averages a bucket of gradients over all ranks, its state)."""
    if config.comm_hook == "powersgd":
        return powersgd, powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=config.powersgd_rank,
            start_powerSGD_iter=POWERSGD_START,
        )
    return (default_hooks.bf16_compress_hook if config.comm_hook == "bf16" else default_hooks.allreduce_hook), None
