"""Train a DLRM with TorchRec under a plan from NeuroShard. Copy the parts that you need into your own program.

`make run` installs TorchRec and trains cost models. Then run the example on any number of ranks:
    torchrun --nproc_per_node 2 examples/torchrec_dlrm.py [data/06_models]

On machines with GPUs it uses NCCL, and needs cost models of such GPUs (measured, or shipped: `h100`). On other machines
it uses gloo. On 2 cores it takes less than 10 seconds: it explains the plan, and the loss falls from 0.7 to about 0.6.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.planner import Topology
from torchrec.models.dlrm import DLRM
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import in_backward_optimizer_filter

import neuroshard_pipeline as ns
from neuroshard_pipeline.torchrec_bridge import NeuroShardPlanner

BATCH_PER_RANK, STEPS, LEARNING_RATE, DENSE_FEATURES = 256, 25, 0.1, 13
ROWS = [20_000, 10_000, 5_000, 2_000, 2_000, 1_000, 500, 100]  # one table and one feature each
IDS_PER_SAMPLE = [20, 1, 5, 40, 1, 10, 1, 3]
FEATURES = [f"feature_{index}" for index in range(len(ROWS))]


def build_model() -> DLRM:
    """Your model: it is unsharded, its tables are on the meta device, and their backward pass applies the optimizer."""
    tables = [
        EmbeddingBagConfig(name=f"table_{feature}", num_embeddings=rows, embedding_dim=64, feature_names=[feature])
        for feature, rows in zip(FEATURES, ROWS, strict=True)
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    model = DLRM(bags, DENSE_FEATURES, dense_arch_layer_sizes=[128, 64], over_arch_layer_sizes=[128, 1])
    apply_optimizer_in_backward(torch.optim.SGD, model.sparse_arch.parameters(), {"lr": LEARNING_RATE})
    return model


def batches(seed: int, device: torch.device) -> Iterator[tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]]:
    """Your data loader: dense features, ids, labels. Here the label depends on the ids of the first table."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        lengths = torch.cat([torch.full((BATCH_PER_RANK,), count) for count in IDS_PER_SAMPLE])
        ids = [
            (rows * torch.rand(BATCH_PER_RANK * count, generator=generator) ** 4).long()  # some rows are popular
            for rows, count in zip(ROWS, IDS_PER_SAMPLE, strict=True)
        ]
        labels = (ids[0].view(BATCH_PER_RANK, -1) < 20).float().mean(dim=1).gt(0.15).float()
        dense = torch.randn(BATCH_PER_RANK, DENSE_FEATURES, generator=generator) + labels[:, None]
        features = KeyedJaggedTensor(FEATURES, torch.cat(ids), lengths=lengths)
        yield dense.to(device), features.to(device), labels.to(device)


def train(device: torch.device) -> None:
    """Plan on rank 0, shard the model by the plan, and train it."""
    rank = dist.get_rank()
    model, data = build_model(), batches(rank, device)
    planner = NeuroShardPlanner(
        models=ns.load_cost_models(sys.argv[1] if len(sys.argv) > 1 else "data/06_models"),
        topology=Topology(dist.get_world_size(), device.type, local_world_size=int(os.environ["LOCAL_WORLD_SIZE"])),
        batch_size=BATCH_PER_RANK,
        batches=[next(data)[1] for _ in range(2 * dist.get_world_size())],  # costs depend on your ids
    )
    plan = planner.collective_plan(model)
    if rank == 0:
        print(planner.search(model).explain())
    model = DistributedModelParallel(model, device=device, plan=plan)
    dense = in_backward_optimizer_filter(model.named_parameters())  # contains the tables that the plan replicates
    optimizer = torch.optim.SGD([parameter for _, parameter in dense], lr=LEARNING_RATE)
    for step in range(STEPS):
        features, ids, labels = next(data)
        loss = binary_cross_entropy_with_logits(model(features, ids).squeeze(-1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.4f}")


def on_all_ranks(run: Callable[[torch.device], None]) -> None:
    """Join the process group, run, and end the group's threads, which must not run while the interpreter exits."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    run(device)
    gc.collect()  # frees the model, whose reference cycles keep the group and its threads alive
    dist.destroy_process_group()


if __name__ == "__main__":
    on_all_ranks(train)
