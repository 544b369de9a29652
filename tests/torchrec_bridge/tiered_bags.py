"""Pooled tables with tiers (copies of popular rows), trained beside the same tables without sharding."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.types import ParameterSharding
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.tiers import Cuts
from neuroshard_pipeline.torchrec_bridge.tiered import RankGroups, cold_name, tiered_embeddings
from neuroshard_pipeline.torchrec_bridge.tiered.base import TieredModule
from neuroshard_pipeline.torchrec_bridge.tiered.popular import PopularTiers
from neuroshard_pipeline.torchrec_plan.structures import parameter_sharding
from neuroshard_pipeline.torchrec_plan.writer import Devices, torchrec_form

SAMPLES_PER_RANK = 5
STEPS = 3
LEARNING_RATE = 0.1
SUM, MEAN = PoolingType.SUM, PoolingType.MEAN
#: Collection → table → rows, columns, features, pooling and cuts.
BAGS = {
    "mixed": {
        "sum": (60, 4, ["x", "shared"], SUM, Cuts(5, 11)),
        "mean": (46, 8, ["y"], MEAN, Cuts(4, 6)),
        "no_tiers": (33, 4, ["shared"], SUM, Cuts()),
        "only_hot": (6, 8, ["z"], SUM, Cuts(6, 0)),
        "mean_without_tiers": (12, 8, ["m"], MEAN, Cuts()),
    },
    "weighted": {"w": (30, 4, ["w", "w2"], SUM, Cuts(3, 5)), "narrow": (20, 8, ["n"], SUM, Cuts())},
}


def bags(name: str) -> EmbeddingBagCollection:
    configs = [
        EmbeddingBagConfig(
            name=table,
            embedding_dim=width,
            num_embeddings=rows,
            feature_names=list(features),
            pooling=pooling,
            init_fn=_fill,
        )
        for table, (rows, width, features, pooling, _) in BAGS[name].items()
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("cpu"), is_weighted=name == "weighted")


def _fill(weight: torch.Tensor) -> None:
    torch.nn.init.uniform_(weight, -0.5, 0.5)


def drawn_bags(name: str, step: int, samples: int, part: slice) -> KeyedJaggedTensor:
    """Ids of the samples in `part`; some bags are empty."""
    rng = np.random.default_rng([step, len(name)])
    rows = {feature: own[0] for own in BAGS[name].values() for feature in own[2]} | {"shared": 33}
    keys, values, weights, lengths = [], [], [], []
    for feature in sorted(rows) if name != "weighted" else ["w2", "n", "w"]:
        count = rng.integers(0, 4, samples)
        ends = np.cumsum(count)
        taken = slice(ends[part.start] - count[part.start], ends[part.stop - 1])
        keys.append(feature)
        values.append(rng.integers(0, rows.get(feature, 33), ends[-1])[taken])
        weights.append(rng.uniform(0.5, 2.0, ends[-1]).astype(np.float32)[taken])
        lengths.append(count[part])
    return KeyedJaggedTensor(
        keys,
        torch.from_numpy(np.concatenate(values)),
        torch.from_numpy(np.concatenate(weights)) if name == "weighted" else None,
        lengths=torch.from_numpy(np.concatenate(lengths)),
    )


def cold_plan(name: str, groups: RankGroups) -> dict[str, ParameterSharding]:
    """Tables without tiers are whole on one rank; the cold rows of the other tables are cut over all ranks."""
    world_size, tables, placed = groups.world.size(), [], []
    for table, (rows, width, _, _, cuts) in BAGS[name].items():
        if rows > cuts.hot_rows + cuts.host_rows:
            own = Table(cold_name(table) if cuts else table, rows - cuts.hot_rows - cuts.host_rows, width, 1.0)
            tables.append(own)
            shards = row_shards(own, "row_wise", world_size)
            placed += list(zip(shards, range(world_size), strict=True)) if cuts else [(whole(own), 1)]
    shards, ranks = zip(*placed, strict=True)
    forms = torchrec_form(tables, shards, ranks, Devices(world_size, groups.host.size(), "cpu"), "")[""]
    return {table: parameter_sharding(form) for table, form in forms.items()}


def trained_bags(
    rank: int, optimizer: type[torch.optim.Optimizer], groups: RankGroups
) -> dict[str, list[tuple[float, float]]]:
    """For every collection the losses per step, with tiers and without sharding.

    Raises:
        AssertionError: keys, widths or trained weights differ, or cold rows are awaited before hot ones are looked up.
    """
    return {name: _trained(name, rank, optimizer, groups) for name in BAGS}


def _trained(
    name: str, rank: int, optimizer: type[torch.optim.Optimizer], groups: RankGroups
) -> list[tuple[float, float]]:
    torch.manual_seed(1)
    unsharded = bags(name)
    original = copy.deepcopy(unsharded)
    apply_optimizer_in_backward(optimizer, original.parameters(), {"lr": LEARNING_RATE})
    tiered = tiered_embeddings(
        original,
        {table: own[-1] for table, own in BAGS[name].items()},
        {table: torch.from_numpy(np.random.default_rng(0).permutation(own[0])) for table, own in BAGS[name].items()},
        cold_plan(name, groups),
        groups,
    )
    dense = optimizer(unsharded.parameters(), lr=LEARNING_RATE)
    samples = SAMPLES_PER_RANK * groups.world.size()
    part = slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
    losses = []
    for step in range(STEPS):
        if step == STEPS - 1:
            tiered.set_learning_rate(LEARNING_RATE / 2)
            dense.param_groups[0]["lr"] = LEARNING_RATE / 2
        mine = tiered(drawn_bags(name, step, samples, part))
        everything = unsharded(drawn_bags(name, step, samples, slice(0, samples)))
        assert (mine.keys(), mine.length_per_key()) == (everything.keys(), everything.length_per_key())
        of_samples = [rows.values().cos().sum(dim=1) for rows in (mine, everything)]
        losses.append((of_samples[0].mean().item(), of_samples[1][part].mean().item()))
        dense.zero_grad()
        for each in of_samples:
            each.mean().backward()
        dense.step()
    found = tiered.state_dict()
    for key, weight in unsharded.state_dict().items():
        torch.testing.assert_close(found[key], weight, rtol=1e-3, atol=1e-3 * LEARNING_RATE)
    check_cold_rows_are_awaited_last(tiered, drawn_bags(name, 0, samples, part))
    return losses


def check_cold_rows_are_awaited_last(module: TieredModule, ids: KeyedJaggedTensor) -> None:
    """Check that the module waits for cold rows only after it has looked up hot rows."""
    parts, exchanged, hot_rows = [], module.exchanged, PopularTiers.hot_rows

    def with_waits(*args):
        cold, host = exchanged(*args)
        return SimpleNamespace(wait=lambda: (parts.append("cold"), cold.wait())[1]), host

    def looked_up(tiers, rows):
        parts.append("hot")
        return hot_rows(tiers, rows)

    with patch.object(module, "exchanged", with_waits), patch.object(PopularTiers, "hot_rows", looked_up):
        module(ids).wait()
    assert parts == ["hot"] * len(module.tiers) + ["cold"]
