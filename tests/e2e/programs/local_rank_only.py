"""A script that knows of LOCAL_RANK and nothing else."""

import os

import torch
import torch.distributed as dist

local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
total = torch.ones(1, device=device)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"local ranks only: {int(total.item())} processes")
dist.destroy_process_group()
