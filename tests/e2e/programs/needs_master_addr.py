"""A script that makes its own rendezvous from MASTER_ADDR and MASTER_PORT, as older ones do."""

import os

import torch
import torch.distributed as dist

dist.init_process_group(
    "gloo",
    init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"own rendezvous: sum of ranks {int(total.item())}")
dist.destroy_process_group()
