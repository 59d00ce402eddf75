"""A user's script: every rank joins the process group, and writes down what torchrun told it."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["RANK"])])
dist.all_reduce(total)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHRUN_HOST", "TORCHRUN_NODE_RANK")
found = {name: os.environ[name] for name in names} | {"sum_of_ranks": total.item()}
Path(os.environ["TORCHRUN_RUN_DIR"], f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
dist.destroy_process_group()
