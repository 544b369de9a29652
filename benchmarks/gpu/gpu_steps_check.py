"""This module checks for `gpu_steps.py` that two ranks train small plans as one process does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch, drawn_batches
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import Group, MakeSteps, RunStep, Span, timed_groups
from neuroshard_pipeline.torchrec_bridge.virtual.networks import Network

WORLD, BATCH_SIZE = 2, 512
TABLES = (Table("a", 5000, 64, 8.0), Table("b", 300, 16, 2.0), Table("c", 64, 32, 1.0))
TASK = ShardingTask(list(TABLES), WORLD, BATCH_SIZE, memory_bytes=2**30, optimizer="sgd", task_id="selftest")
TOLERANCE = 1e-4


def _plan(name: str, placed: Sequence[tuple[Shard, int]]) -> Plan:
    shards, ranks = zip(*placed, strict=True)
    return Plan(TASK, shards, ranks, name, compute_device="cuda")


def check_plans(with_replicas: bool) -> list[tuple[Plan, ...]]:
    """The plans that are held at the same time."""
    a, b, c = TABLES
    tables = _plan("table_wise", [(Shard(a, 0, 32), 0), (Shard(a, 32, 32), 1), (whole(b), 0), (whole(c), 1)])
    rows = [list(zip(row_shards(table, "row_wise", WORLD), range(WORLD), strict=True)) for table in TABLES]
    replicas = [(whole(c, "data_parallel"), rank) for rank in range(WORLD)]
    held = [(tables, _plan("row_wise", list(chain(*rows))))]
    return [*held, (_plan("data_parallel", [(whole(a), 0), (whole(b), 1), *replicas]),)] if with_replicas else held


def checked(params: StepParams, networks: Mapping[str, Network], with_replicas: bool) -> pd.DataFrame:
    """A row per network, step and rank of every plan, with the largest errors of outputs and weights."""
    batches = drawn_batches(TASK.tables, BATCH_SIZE, 2, 0)
    groups = [Group(plans, batches) for plans in check_plans(with_replicas)]
    return pd.concat([frame for _, frame in timed_groups(groups, params, networks, load_checked_steps)])


def load_checked_steps() -> MakeSteps:
    """The steps of small plans with their errors, for `timed_groups`."""
    return checked_steps


def checked_steps(
    group: Group, params: Any, device: torch.device, now: Callable[[], float] | None
) -> list[tuple[dict[str, Any], RunStep]]:
    """What takes turns (`steps.MakeSteps`): steps under every plan, which are compared with those of one process."""
    return [
        ({"task_id": TASK.task_id, "sharder": plan.sharder}, _steps(plan, group.batches, params, device, now))
        for plan in group.plans
    ]


def _steps(plan: Plan, batches: Sequence[Batch], params: Any, device: torch.device, now: Any) -> RunStep:
    # Imported late, because the process that starts the ranks needs no TorchRec.
    from neuroshard_pipeline.torchrec_bridge.train_check.model import share_of_rank
    from neuroshard_pipeline.torchrec_bridge.truth.embeddings import RankIds, ShardedEmbeddings

    cpu, part = torch.device("cpu"), share_of_rank(TASK)
    module = ShardedEmbeddings(plan, params, device, now)
    own = [RankIds(TASK.tables, batch.ids, part, device) for batch in batches]
    (of_all,) = zip(*(RankIds(TASK.tables, b.ids, slice(0, BATCH_SIZE), cpu).keyed() for b in batches), strict=True)
    generator = torch.Generator().manual_seed(0)
    weights = {t.name: torch.rand(t.num_embeddings, t.embedding_dim, generator=generator) for t in TABLES}
    for (name, rectangle), held in _held(module.collections):
        held.data.copy_(weights[name][rectangle])

    def step(number: int) -> tuple[dict[str, Any], list[Span]]:
        spans = module.step(own[number % len(own)])
        _train(weights, of_all[number % len(own)], params.learning_rate)
        found = module.collections[0](own[0].keyed()[0]).wait().to_dict()
        outputs = _outputs(weights, of_all[0])
        output_error = max(_error(found[name], rows[part]) for name, rows in outputs.items())
        held = _held(module.collections)
        weight_error = max((_error(own, weights[name][at]) for (name, at), own in held), default=0.0)
        return {"output_error": output_error, "weight_error": weight_error}, spans

    return step


def _held(collections: Sequence[nn.Module]) -> Iterator[tuple[tuple[str, tuple[slice, slice]], Tensor]]:
    """The name of a table, the rows and columns of a shard that this rank has, and its weights."""
    for key, value in chain(*(collection.state_dict().items() for collection in collections)):
        name = key.split(".")[-2]
        if isinstance(value, Tensor) and not hasattr(value, "local_shards"):
            yield (name, (slice(None), slice(None))), value
            continue
        for shard in value.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            yield (name, (slice(row, row + rows), slice(column, column + columns))), shard.tensor


def _outputs(weights: Mapping[str, Tensor], keyed: Any) -> dict[str, Tensor]:
    """The pooled rows of every table for all samples of a batch."""
    ids = {table.name: keyed[key] for table, key in zip(TABLES, keyed.keys(), strict=True)}
    return {
        key: embedding_bag(of.values(), weights[name], of.offsets(), mode="sum", include_last_offset=True)
        for key, (name, of) in zip(keyed.keys(), ids.items(), strict=True)
    }


def _train(weights: dict[str, Tensor], keyed: Any, learning_rate: float) -> None:
    """A step of SGD; the gradient of every output is one, and ranks average gradients."""
    leaves = {name: weight.requires_grad_() for name, weight in weights.items()}
    (sum(rows.sum() for rows in _outputs(leaves, keyed).values()) / WORLD).backward()  # type: ignore[union-attr]
    for name, leaf in leaves.items():
        weights[name] = leaf.detach() - learning_rate * leaf.grad


def _error(found: Tensor, expected: Tensor) -> float:
    """Largest absolute difference relative to the largest value."""
    return float((found.detach().cpu() - expected.detach()).abs().max() / expected.detach().abs().max())


def checked_params(params: StepParams) -> StepParams:
    """The parameters of the check: few steps, with large changes of the weights."""
    return params.model_copy(update={"rounds": 2, "steps_per_round": 3, "learning_rate": 0.1})
