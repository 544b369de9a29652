"""Train a DLRM under a plan by TorchRec's planner that cuts all tables, then move it to a better plan and train on.

It trains the model of `torchrec_dlrm.py`. Run it as that example, on any number of ranks:
    torchrun --nproc_per_node 2 examples/replan.py [data/06_models]

It prints the losses of every fifth step, the bytes that the move took, and the time of a step under both plans.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec_dlrm import BATCH_PER_RANK, FEATURES, LEARNING_RATE, batches, build_model, on_all_ranks

import neuroshard_pipeline as ns
from neuroshard_pipeline.torchrec_bridge import NeuroShardPlanner, PlannerOptions, torchrec_sharders
from neuroshard_pipeline.torchrec_bridge.moving import load, move, save

STEPS = 25


class Job:
    """Your training: a model under a plan, and the optimizer of all parameters that no backward pass updates."""

    def __init__(self, plan: ShardingPlan, device: torch.device) -> None:
        sharders = torchrec_sharders(device=device.type)
        self.model = DistributedModelParallel(build_model(), device=device, plan=plan, sharders=sharders)
        dense = in_backward_optimizer_filter(self.model.named_parameters())
        self.optimizer = torch.optim.SGD([parameter for _, parameter in dense], lr=LEARNING_RATE)

    def train(self, data: Iterator[Any]) -> None:
        """Some steps."""
        seconds = []
        for step in range(STEPS):
            features, ids, labels = next(data)
            start = time.perf_counter()
            loss = binary_cross_entropy_with_logits(self.model(features, ids).squeeze(-1), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            seconds.append(time.perf_counter() - start)
            if step % 5 == 4:
                say(f"loss {loss.item():.4f}")
        say(f"a step took {1000 * sorted(seconds)[STEPS // 4]:.1f} ms")


def run(device: torch.device) -> None:
    """Train, plan from the plan that runs, move, save, load, and train on."""
    data, ranks = batches(dist.get_rank(), device), int(os.environ["LOCAL_WORLD_SIZE"])
    topology = Topology(dist.get_world_size(), device.type, local_world_size=ranks)
    cut = ParameterConstraints(sharding_types=["column_wise"], min_partition=16)  # constraints that were once set
    stock = EmbeddingShardingPlanner(topology, BATCH_PER_RANK, constraints={f"table_{name}": cut for name in FEATURES})
    sharders = torchrec_sharders(device=device.type)
    job = Job(stock.collective_plan(build_model(), sharders, dist.GroupMember.WORLD), device)
    job.train(data)

    planner = NeuroShardPlanner(
        models=ns.load_cost_models(sys.argv[1] if len(sys.argv) > 1 else "data/06_models"),
        topology=topology,
        batch_size=BATCH_PER_RANK,
        batches=[next(data)[1] for _ in range(2 * dist.get_world_size())],
        options=PlannerOptions(present=job.model),  # or a path; the plan stays if no other one is surely better
    )
    better = Job(planner.collective_plan(build_model()), device)
    moved = move(job.model, better.model, [job.optimizer], [better.optimizer])
    say(f"moved at most {moved / 2**20:.1f} MiB per rank")
    better.train(data)

    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)  # for another number of ranks, another job loads the checkpoint
    save(folder[0], better.model, [better.optimizer])
    load(folder[0], job.model, [job.optimizer])
    say("saved under the new plan, and loaded under the old one")


def say(text: str) -> None:
    """Print on the first rank."""
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    on_all_ranks(run)
