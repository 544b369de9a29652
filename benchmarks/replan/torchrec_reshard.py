r"""Which changes of plan can TorchRec's own `DistributedModelParallel.reshard` make on gloo?

    python benchmarks/replan/torchrec_reshard.py

For every change, four ranks train two equal models for two steps, and reshard one of them. The change counts as right
if the losses of the next three steps are equal. Every change runs in processes of its own, since some crash.
"""

from __future__ import annotations

import copy
import datetime
import logging
import os
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

WORLD, ROWS, COLUMNS, RATE = 4, 40, 16, 0.1
OPTIMIZERS = {"SGD": torch.optim.SGD, "row-wise Adagrad": RowWiseAdagrad}


def columns(kind: str, *shards: tuple[int, int]) -> ParameterSharding:
    """Shards of all rows, each given as (rank, columns)."""
    ends = [sum(width for _, width in shards[: number + 1]) for number in range(len(shards))]
    pieces = [
        ShardMetadata([0, end - w], [ROWS, w], f"rank:{rank}/cpu") for (rank, w), end in zip(shards, ends, strict=True)
    ]
    return ParameterSharding(kind, "fused", [rank for rank, _ in shards], EnumerableShardingSpec(pieces))


def rows() -> ParameterSharding:
    """A quarter of the rows on every rank."""
    pieces = [
        ShardMetadata([ROWS // WORLD * rank, 0], [ROWS // WORLD, COLUMNS], f"rank:{rank}/cpu") for rank in range(WORLD)
    ]
    return ParameterSharding("row_wise", "fused", list(range(WORLD)), EnumerableShardingSpec(pieces))


CHANGES = {
    "table_wise: to another rank": (columns("table_wise", (0, 16)), columns("table_wise", (1, 16))),
    "column_wise: whole table to another rank": (columns("column_wise", (0, 16)), columns("column_wise", (1, 16))),
    "column_wise: shards change places": (
        columns("column_wise", (0, 8), (1, 8)),
        columns("column_wise", (1, 8), (0, 8)),
    ),
    "column_wise: cut, all columns leave": (columns("column_wise", (0, 16)), columns("column_wise", (1, 8), (2, 8))),
    "column_wise: joined, all columns leave": (columns("column_wise", (0, 8), (1, 8)), columns("column_wise", (2, 16))),
    "column_wise: cut, some columns stay": (columns("column_wise", (0, 16)), columns("column_wise", (0, 8), (1, 8))),
    "column_wise: two shards on one rank": (
        columns("column_wise", (0, 8), (0, 8)),
        columns("column_wise", (1, 8), (1, 8)),
    ),
    "table_wise to column_wise": (columns("table_wise", (0, 16)), columns("column_wise", (1, 8), (2, 8))),
    "column_wise to row_wise": (columns("column_wise", (0, 16)), rows()),
    "row_wise to column_wise": (rows(), columns("column_wise", (0, 16))),
}


class Model(nn.Module):
    """Two tables and a dense layer, without which `reshard` fails."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = {"num_embeddings": ROWS, "embedding_dim": COLUMNS}
        tables = [EmbeddingBagConfig(name=name, feature_names=[name], **config) for name in "ab"]
        self.bags = EmbeddingBagCollection(tables, device=torch.device("cpu"))
        self.dense = nn.Linear(COLUMNS, 1)

    def forward(self, ids: KeyedJaggedTensor) -> torch.Tensor:
        """The loss of a batch."""
        bags = self.bags(ids)
        return sum((self.dense(bags[name]).square().mean() for name in "ab"), torch.zeros(()))


def run(rank: int, change: str, optimizer: str, folder: str) -> None:
    """Make one change on one rank, and write the answer of rank 0."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    wait = datetime.timedelta(seconds=20)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=wait)
    before, after = CHANGES[change]
    other = columns(before.sharding_type, (3, 16)) if before.sharding_type != "row_wise" else rows()
    models = []
    for _ in range(2):
        model = Model()
        apply_optimizer_in_backward(OPTIMIZERS[optimizer], model.bags.parameters(), {"lr": RATE})
        plan = ShardingPlan({"bags": EmbeddingModuleShardingPlan(copy.deepcopy({"a": before, "b": other}))})
        models.append(DistributedModelParallel(model, device=torch.device("cpu"), plan=plan))
    losses = [[step(model, number, rank) for model in models] for number in range(2)]
    models[0].reshard({"bags": (0.0, EmbeddingModuleShardingPlan({"a": copy.deepcopy(after)}))}, "bags")
    losses = [[step(model, number, rank) for model in models] for number in range(2, 5)]
    is_right = all(abs(one - two) < 1e-6 for one, two in losses)
    answer = "right" if is_right else f"other losses: {losses[-1][0]:.5f} instead of {losses[-1][1]:.5f}"
    Path(folder, str(rank)).write_text(answer, encoding="utf-8")
    dist.barrier()


def step(model: nn.Module, number: int, rank: int) -> float:
    """Train one step and return the loss."""
    drawn = torch.randint(0, ROWS, (24,), generator=torch.Generator().manual_seed(10 * number + rank))
    loss = model(KeyedJaggedTensor(["a", "b"], drawn, lengths=torch.full((8,), 3)))
    loss.backward()
    return loss.item()


def main() -> None:
    """Print what became of every change."""
    for optimizer in OPTIMIZERS:
        for change in CHANGES:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    multiprocessing.start_processes(run, (change, optimizer, folder), WORLD, start_method="fork")
                    answers = {Path(folder, str(rank)).read_text(encoding="utf-8") for rank in range(WORLD)}
                    answer = max(answers, key=len)
                except Exception as error:  # whatever TorchRec or gloo raises is an answer
                    answer = "fails: " + str(error).strip().splitlines()[-1][:90]
            print(f"{optimizer:17} {change:42} {answer}", flush=True)


if __name__ == "__main__":
    main()
