"""A model with tiers (copies of popular rows), trained beside the same model without sharding; ranks run this."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
)
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec_bridge.tiered_bags import check_cold_rows_are_awaited_last, trained_bags

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task
from neuroshard_pipeline.torchrec_bridge.tiered import (
    RankGroups,
    load_optimizer_state,
    optimizer_state,
    put_tiers,
    rank_groups,
    recorded_traffic,
)
from neuroshard_pipeline.torchrec_bridge.tiered.base import TieredModule
from neuroshard_pipeline.torchrec_bridge.tiered.traffic import Collective
from neuroshard_pipeline.torchrec_plan.modules import read_module_tables

SAMPLES_PER_RANK = 6
STEPS = 5
LEARNING_RATE = 0.1
WIDTH = 8
OPTIMIZERS = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "rowwise_adagrad": RowWiseAdagrad}
#: Table → rows, features and cuts. The feature `shared` looks up two tables; no sample has ids of `empty`.
SEQUENCES = {
    "all_tiers": (90, ["a", "shared"], Cuts(7, 15)),
    "two_features": (51, ["b", "b2"], Cuts(3, 8)),
    "only_hot": (8, ["c"], Cuts(8, 0)),
    "only_host": (21, ["d"], Cuts(0, 21)),
    "no_tiers": (64, ["e", "shared"], Cuts()),
    "no_host": (70, ["f"], Cuts(9, 0)),
    "no_hot": (50, ["g", "empty"], Cuts(0, 13)),
}


@dataclass(frozen=True)
class Case:
    """How the tables are sharded and trained.

    Attributes:
        optimizer: a key of `OPTIMIZERS`.
        sharding_type: of cold rows.
        index_dedup: whether distinct ids are exchanged once.
        ranks_per_host: ranks of a host.
        has_tiers: whether tables have tiers.
        comm_precision: number format of rows between ranks.
    """

    optimizer: str
    sharding_type: str
    index_dedup: bool
    ranks_per_host: int
    has_tiers: bool = True
    comm_precision: str = "fp32"


class TieredModel(nn.Module):
    """A collection of sequence tables and one of pooled tables."""

    def __init__(self) -> None:
        super().__init__()
        configs = [
            EmbeddingConfig(
                name=name, embedding_dim=WIDTH, num_embeddings=rows, feature_names=list(features), init_fn=_fill
            )
            for name, (rows, features, _) in SEQUENCES.items()
        ]
        self.sequence = EmbeddingCollection(tables=configs, device=torch.device("cpu"), need_indices=True)
        pooled = EmbeddingBagConfig(name="p", embedding_dim=4, num_embeddings=30, feature_names=["p"], init_fn=_fill)
        self.pooled = EmbeddingBagCollection(tables=[pooled], device=torch.device("cpu"))
        self.names = [name for names in self.sequence.embedding_names_by_table() for name in names]
        self.over = nn.Linear(WIDTH * len(self.names) + 4, 1)

    def forward(self, ids: KeyedJaggedTensor, pooled_ids: KeyedJaggedTensor) -> torch.Tensor:
        rows = self.sequence(ids)
        parts = [summed(rows[name]) for name in self.names]
        return self.over(torch.cat([*parts, self.pooled(pooled_ids)["p"]], dim=1)).squeeze(-1)


def _fill(weight: torch.Tensor) -> None:
    nn.init.uniform_(weight, -0.5, 0.5)


def summed(rows: JaggedTensor) -> torch.Tensor:
    """For every sample, the sum of a function of its rows, their places in the sequence and their ids."""
    place = torch.arange(len(rows.values())) - rows.offsets()[:-1].repeat_interleave(rows.lengths().long())
    scale = 1.0 + 0.1 * place + 0.01 * rows.weights()
    return torch.segment_reduce(rows.values().tanh() * scale[:, None], "sum", lengths=rows.lengths().long())


def popular_rows(name: str) -> torch.Tensor:
    """Ids of a table, the most popular first."""
    rows, _, cuts = SEQUENCES[name]
    order = np.random.default_rng(rows).permutation(rows)
    return torch.from_numpy(order[: cuts.hot_rows + cuts.host_rows + 1])


def drawn_ids(step: int, samples: int, part: slice) -> tuple[KeyedJaggedTensor, KeyedJaggedTensor]:
    """Ids of the samples in `part`; step 1 has only popular ids, and step 2 has none of them, except in `shared`."""
    rng = np.random.default_rng(step)
    keys, values, lengths = (
        ["unused"],
        [np.zeros(samples, dtype=np.int64)[part]],
        [np.ones(samples, dtype=np.int64)[part]],
    )
    features = {name: rows for _, (rows, names, _) in SEQUENCES.items() for name in names}
    of_table = {name: table for table, (_, names, _) in SEQUENCES.items() for name in names}
    for name in sorted(features | {"shared": 64}):
        rows = 64 if name == "shared" else features[name]
        popular = popular_rows(of_table[name]).numpy()[:-1]
        allowed = np.arange(rows)
        if step == 1:
            allowed = np.intersect1d(allowed, popular)
        if step == 2:
            allowed = np.setdiff1d(allowed, popular)
        count = rng.integers(0, 6, samples) * (name != "empty") * (len(allowed) > 0)
        ends = np.cumsum(count)
        drawn = rng.choice(allowed, ends[-1]) if ends[-1] else np.empty(0, dtype=np.int64)
        keys.append(name)
        values.append(drawn[ends[part.start] - count[part.start] : ends[part.stop - 1]])
        lengths.append(count[part])
    pooled = rng.integers(0, 30, samples)[part]
    return (
        KeyedJaggedTensor(
            keys, torch.from_numpy(np.concatenate(values)), lengths=torch.from_numpy(np.concatenate(lengths))
        ),
        KeyedJaggedTensor(["p"], torch.from_numpy(pooled), lengths=torch.ones(len(pooled), dtype=torch.int32)),
    )


def plan_of(model: TieredModel, case: Case, world_size: int) -> Plan:
    """A plan with tiers; the cold rows of a table are cut over all ranks, split by columns, or whole on one rank."""
    tables = [entry.table for entry in read_module_tables(model)]
    task = ShardingTask(
        tables,
        world_size,
        SAMPLES_PER_RANK * world_size,
        2**30,
        local_world_size=case.ranks_per_host,
        tiers=True,
        index_dedup=case.index_dedup,
        comm_precision=case.comm_precision,
    )
    cuts = {name: cuts for name, (_, _, cuts) in SEQUENCES.items() if cuts and case.has_tiers}
    if task.num_hosts == 1:
        cuts = {name: Cuts(own.hot_rows) for name, own in cuts.items()}
    task = tiered_task(task, cuts)
    placed = [entry for at, table in enumerate(task.tables) for entry in _placed(table, at, case, task)]
    shards, ranks = zip(*placed, strict=True)
    return Plan(task, shards, ranks, "by hand", compute_device="cpu")


def _placed(table: Table, at: int, case: Case, task: ShardingTask) -> list[tuple[Shard, int]]:
    ranks = range(task.world_size)
    kind = None if table.tier is None else table.tier.kind
    if kind == "hot":
        return [(whole(table, "data_parallel"), rank) for rank in ranks]
    if kind == "host":
        shards = row_shards(table, "host_row_wise", task.ranks_per_host)
        return [(shard, host + place) for host in ranks[:: task.ranks_per_host] for place, shard in enumerate(shards)]
    if table.pooling == "none" and case.sharding_type == "row_wise":
        return list(zip(row_shards(table, "row_wise", task.world_size), ranks, strict=True))
    if table.pooling == "none" and case.sharding_type == "column_wise":
        return [(Shard(table, column, WIDTH // 2), (at + column) % task.world_size) for column in (0, WIDTH // 2)]
    return [(whole(table), at % task.world_size)]


def tiered_model(model: TieredModel, case: Case, groups: RankGroups) -> DistributedModelParallel:
    """A copy of the model, sharded over all ranks by `plan_of`."""
    model = copy.deepcopy(model)
    weight = model.pooled.embedding_bags["p"].weight.detach().clone()
    for tables in (model.sequence, model.pooled):
        apply_optimizer_in_backward(OPTIMIZERS[case.optimizer], tables.parameters(), {"lr": LEARNING_RATE})
    plan = plan_of(model, case, groups.world.size())
    rest = put_tiers(model, plan, {name: popular_rows(name) for name in SEQUENCES}, groups)
    assert list(rest.plan) == ["pooled"]
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=rest)
    for shard in module_of(parallel).pooled.state_dict()["embedding_bags.p.weight"].local_shards():
        shard.tensor.detach().copy_(weight)  # TorchRec calls `init_fn` again
    return parallel


def module_of(parallel: DistributedModelParallel) -> TieredModel:
    """The model inside `DistributedModelParallel` and, if there is one, `DistributedDataParallel`."""
    return getattr(parallel.module, "module", parallel.module)


def trained_with_tiers(
    rank: int, world_size: int, cases: list[Case]
) -> list[tuple[list[tuple[float, float]], list[Collective], dict[str, list[tuple[float, float]]]]]:
    """For every case the losses per step, with tiers and without sharding, and the collectives of the last step.

    The third element of a case holds the losses of pooled tables, by collection.

    Raises:
        AssertionError: outputs or trained weights differ, or the state of one model does not fit the other.
    """
    groups = {size: rank_groups(size) for size in sorted({case.ranks_per_host for case in cases})}
    _check_first_weights(cases[0], groups[cases[0].ranks_per_host])
    return [
        (
            *_trained(rank, world_size, case, groups[case.ranks_per_host]),
            trained_bags(rank, OPTIMIZERS[case.optimizer], groups[case.ranks_per_host]),
        )
        for case in cases
    ]


def _trained(
    rank: int, world_size: int, case: Case, groups: RankGroups
) -> tuple[list[tuple[float, float]], list[Collective]]:
    torch.manual_seed(0)
    unsharded = TieredModel()
    parallel = tiered_model(unsharded, case, groups)
    dense = [weight for _, weight in in_backward_optimizer_filter(parallel.named_parameters())]
    assert len(dense) == 2
    optimizer = OPTIMIZERS[case.optimizer]
    tables = [*unsharded.sequence.parameters(), *unsharded.pooled.parameters()]
    optimizers = [
        optimizer(tables, lr=LEARNING_RATE),
        torch.optim.SGD(unsharded.over.parameters(), lr=LEARNING_RATE),
        torch.optim.SGD(dense, lr=LEARNING_RATE),
    ]
    samples = SAMPLES_PER_RANK * world_size
    part = slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
    losses = []
    for step in range(STEPS):
        for each in optimizers:
            each.zero_grad()
        with recorded_traffic() as calls:
            mine = (parallel(*drawn_ids(step, samples, part)) - 1).square()
            mine.mean().backward()
        everything = (unsharded(*drawn_ids(step, samples, slice(0, samples))) - 1).square()
        everything.mean().backward()
        losses.append((mine.mean().item(), everything[part].mean().item()))
        for each in optimizers:
            each.step()
    tolerance = 1e-3 if case.comm_precision == "fp32" else 1e-2
    _check_optimizer_state(module_of(parallel).sequence, unsharded, optimizers[0], tolerance)
    _check_state(parallel, unsharded, tolerance)
    return losses, list(calls)


def _check_optimizer_state(
    sequence: TieredModule, unsharded: TieredModel, expected: torch.optim.Optimizer, tolerance: float
) -> None:
    """The state is that of the dense optimizer of the unsharded tables, and a loaded state is read back."""
    found = optimizer_state(sequence)
    tables = dict(unsharded.sequence.named_parameters())
    assert list(found) == list(tables)
    for (key, weight), name in zip(tables.items(), SEQUENCES, strict=True):
        sums = {f"{name}.momentum1": of for state, of in expected.state[weight].items() if state == "sum"}
        assert found[key].keys() == sums.keys()
        for state, of in sums.items():
            torch.testing.assert_close(found[key][state].view_as(of), of, rtol=tolerance, atol=1e-9)
    other = {key: {name: torch.rand_like(of) for name, of in own.items()} for key, own in found.items()}
    torch.distributed.broadcast_object_list(sent := [other], src=0)
    load_optimizer_state(sequence, sent[0])
    for key, own in optimizer_state(sequence).items():
        for name, of in own.items():
            torch.testing.assert_close(of, sent[0][key][name], rtol=0, atol=0)


def resumed(rank: int, world_size: int, before: Case, after: list[Case]) -> list[list[tuple[float, float]]]:
    """For every case of `after`, losses per step of a module that trains on, and of one that has loaded its state.

    Raises:
        AssertionError: a module waits for cold rows before it has looked up hot rows.
        pytest.fail.Exception: a state that does not fit is not refused.
    """
    groups = {size: rank_groups(size) for size in sorted({case.ranks_per_host for case in (before, *after)})}
    first = _sequence(before, groups, seed=0)
    _steps(first, rank, world_size, 0)
    saved, state = first.state_dict(), optimizer_state(first)
    others = [_sequence(case, groups, seed=1 + at) for at, case in enumerate(after)]
    for other in others:
        other.load_state_dict(saved)
        load_optimizer_state(other, state)
    expected = _steps(first, rank, world_size, STEPS)
    with pytest.raises(PlanError, match=r"the state 'all_tiers\.momentum1' is missing; it must have"):
        load_optimizer_state(first, {})
    with pytest.raises(PlanError, match="a state for every column shard of a row"):
        optimizer_state(_sequence(replace(before, sharding_type="column_wise"), groups, seed=0))
    part = slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
    check_cold_rows_are_awaited_last(others[0], drawn_ids(0, SAMPLES_PER_RANK * world_size, part)[0])
    return [list(zip(expected, _steps(other, rank, world_size, STEPS), strict=True)) for other in others]


def _sequence(case: Case, groups: dict[int, RankGroups], seed: int) -> TieredModule:
    torch.manual_seed(seed)
    return module_of(tiered_model(TieredModel(), case, groups[case.ranks_per_host])).sequence


def _steps(sequence: TieredModule, rank: int, world_size: int, first: int) -> list[float]:
    """The losses of `STEPS` training steps, from step `first` on."""
    losses, part = [], slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
    for step in range(first, first + STEPS):
        ids, _ = drawn_ids(step, SAMPLES_PER_RANK * world_size, part)
        loss = torch.stack([(summed(rows) - 1).square().mean() for rows in sequence(ids).wait().values()]).sum()
        loss.backward()
        losses.append(loss.item())
    return losses


def _check_state(parallel: DistributedModelParallel, unsharded: TieredModel, tolerance: float) -> None:
    """The state is that of the unsharded model, and a loaded state is read back."""
    sequence = module_of(parallel).sequence
    expected = unsharded.sequence.state_dict()
    found = sequence.state_dict()
    assert list(found) == list(expected)
    for key, weight in expected.items():
        # Row-wise Adagrad divides by the norm of a row's gradients, which magnifies rounding errors of tiny gradients.
        torch.testing.assert_close(found[key], weight, rtol=tolerance, atol=tolerance * LEARNING_RATE)
    other = {key: torch.rand_like(weight) for key, weight in expected.items()}
    torch.distributed.broadcast_object_list(sent := [other], src=0)
    assert sequence.load_state_dict(sent[0]).missing_keys == []
    for key, weight in sequence.state_dict().items():
        torch.testing.assert_close(weight, sent[0][key], rtol=0, atol=0)
    whole = parallel.state_dict()
    assert set(whole) == set(unsharded.state_dict())
    missing, unexpected = parallel.load_state_dict(whole)
    assert not missing
    assert not unexpected
    unsharded.sequence.load_state_dict(sequence.state_dict())


def _check_first_weights(case: Case, groups: RankGroups) -> None:
    """A module from the meta device has weights of `init_fn`, and returns the rows that its own state has."""
    model = TieredModel()
    model.sequence = EmbeddingCollection(model.sequence.embedding_configs(), torch.device("meta"), need_indices=True)
    for tables in (model.sequence, model.pooled):
        apply_optimizer_in_backward(torch.optim.SGD, tables.parameters(), {"lr": LEARNING_RATE})
    plan, rank = plan_of(model, case, groups.world.size()), groups.world.rank()
    with pytest.raises(PlanError, match="rank 1 has other popular_rows or cuts of table"):
        put_tiers(model, plan, {name: popular_rows(name).roll(rank) for name in SEQUENCES}, groups)
    put_tiers(model, plan, {name: popular_rows(name) for name in SEQUENCES}, groups)
    unsharded = TieredModel().sequence
    unsharded.load_state_dict(model.sequence.state_dict())
    for weight in unsharded.parameters():
        assert 0.4 < weight.abs().max() <= 0.5
        assert (weight != 0).all()
    ids, _ = drawn_ids(0, SAMPLES_PER_RANK, slice(0, SAMPLES_PER_RANK))
    with torch.no_grad():
        found, expected = model.sequence(ids).wait(), unsharded(ids)
    assert list(found) == list(expected)
    for name, rows in expected.items():
        torch.testing.assert_close(found[name].values(), rows.values(), rtol=0, atol=0)
        assert torch.equal(found[name].lengths(), rows.lengths())
        assert torch.equal(found[name].weights(), rows.weights())


def asked_rows(case: Case, world_size: int) -> np.ndarray:
    """For every rank, how many host rows it asks each rank of its host for in the last step: (ranks, ranks per host).

    Every distinct id counts once if `case.index_dedup`, else every id.
    """
    size = case.ranks_per_host
    place = [(name, int(row)) for name, (_, _, cuts) in SEQUENCES.items() for row in _host_rows(name, cuts)]
    owner = {key: number % size for number, key in enumerate(place)}
    counts = np.zeros((world_size, size), dtype=int)
    for rank in range(world_size):
        part = slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
        ids, _ = drawn_ids(STEPS - 1, SAMPLES_PER_RANK * world_size, part)
        asked = [
            (table, row)
            for table, (_, names, _) in SEQUENCES.items()
            for name in names
            for row in ids[name].values().tolist()
        ]
        for key in set(asked) if case.index_dedup else asked:
            if key in owner:
                counts[rank, owner[key]] += 1
    return counts


def _host_rows(name: str, cuts: Cuts) -> list[int]:
    return popular_rows(name)[cuts.hot_rows : cuts.hot_rows + cuts.host_rows].tolist()


def exchanged_plan(case: Case, world_size: int) -> Plan:
    """The plan of a case; the pooling factors of its tables are those of the batch of the last step."""
    plan = plan_of(TieredModel(), case, world_size)
    samples = SAMPLES_PER_RANK * world_size
    ids, _ = drawn_ids(STEPS - 1, samples, slice(0, samples))
    counts = {"p": samples}
    for table, (_, names, cuts) in SEQUENCES.items():
        order = popular_rows(table)[: cuts.hot_rows + cuts.host_rows]
        found = torch.cat([ids[name].values() for name in names])
        counts |= {
            f"{table}/hot": torch.isin(found, order[: cuts.hot_rows]).sum().item(),
            f"{table}/host": torch.isin(found, order[cuts.hot_rows :]).sum().item(),
        }
        counts[f"{table}/cold" if cuts else table] = (~torch.isin(found, order)).sum().item()
    tables = {
        each.name: replace(each, pooling_factor=max(counts[each.name] / samples, 1e-9)) for each in plan.task.tables
    }
    shards = tuple(replace(shard, table=tables[shard.table.name]) for shard in plan.shards)
    return Plan(replace(plan.task, tables=tuple(tables.values())), shards, plan.ranks, "counted")
