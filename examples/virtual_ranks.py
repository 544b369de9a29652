"""What would a plan cost on 16 ranks with 100 Gbit/s? TorchRec trains your model on virtual ranks of this machine.

After `make run`, or with TorchRec in your environment (docs/torchrec.md), it takes about two minutes on 2 cores, and 5
GiB of memory:

    python examples/virtual_ranks.py [ranks] [ranks per host]

Replace the model, the batches and the plan by your own. The ranks import this file.
"""

import sys
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from tqdm import tqdm

import neuroshard_pipeline as ns
from neuroshard_pipeline.lab.network_presets import ethernet, network_preset
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge import torchrec_sharders
from neuroshard_pipeline.torchrec_bridge.virtual.own import step_times

BATCH_PER_RANK = 256
TABLES = [ns.Table(f"table_{at}", 5_000 * (1 + at % 7), 64, 2.0 + at % 9) for at in range(24)]


class Model(nn.Module):
    """Your model, unsharded."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingBagConfig(
                    name=table.name,
                    num_embeddings=table.num_embeddings,
                    embedding_dim=table.embedding_dim,
                    feature_names=[f"f_{table.name}"],
                )
                for table in TABLES
            ],
        )
        self.top = nn.Sequential(nn.Linear(64 * len(TABLES), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: KeyedJaggedTensor) -> torch.Tensor:
        """Scores (B, 1) of the samples."""
        return self.top(self.bags(ids).values())


def batches(rank: int) -> Iterator[KeyedJaggedTensor]:
    """Your data loader: the batches of one rank."""
    generator = torch.Generator().manual_seed(rank)
    ids = []
    for table in TABLES:
        count = BATCH_PER_RANK * round(table.pooling_factor)
        ids.append((table.num_embeddings * torch.rand(count, generator=generator) ** 3).long())
    lengths = torch.cat([torch.full((BATCH_PER_RANK,), round(table.pooling_factor)).int() for table in TABLES])
    while True:
        yield KeyedJaggedTensor([f"f_{table.name}" for table in TABLES], torch.cat(ids), lengths=lengths)


def set_up(rank: int, _: int, plan: Plan) -> Callable[[], None]:
    """Make the model of a rank, one of so many; the returned function runs a training step."""
    model = Model()
    apply_optimizer_in_backward(torch.optim.SGD, model.bags.parameters(), {"lr": 0.01})
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=plan.to_torchrec(model, plan.task.ranks_per_host, "cpu"),
        sharders=torchrec_sharders(device="cpu"),
    )
    data = batches(rank)

    def step() -> None:
        sharded(next(data)).mean().backward()

    return step


if __name__ == "__main__":
    ranks, per_host = (int(number) for number in (*sys.argv[1:], *("16", "8")[len(sys.argv) - 1 :]))
    task = ns.ShardingTask(TABLES, ranks, BATCH_PER_RANK * ranks, memory_bytes=2**30, local_world_size=per_host)
    networks = {
        "100 Gbit/s": ethernet(100, per_host),
        "25 Gbit/s": ethernet(25, per_host),
        "InfiniBand": network_preset("h100-ib400", per_host),
    }
    for sharder in ("random", "neuroshard_plus"):
        plan = ns.shard(task, ns.load_cost_models("h100"), sharder)
        times = step_times(set_up, ranks, networks, (plan,), ranks_per_host=per_host, progress=tqdm)
        slowest = times.loc[times.groupby(["network", "step"])["step_ms"].idxmax()]
        parts = ["step_ms", "computed_ms", "transfer_ms", "waiting_ms"]
        print(f"{sharder}, slowest rank\n{slowest.groupby('network')[parts].median().round(2)}\n")
