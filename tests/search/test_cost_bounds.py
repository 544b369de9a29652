"""Bounds of benchmarks/search/cost_bounds.py against the cheapest of all plans, over every split and placement."""

import itertools

import numpy as np
import pytest
from cost_bounds import cost_bound

from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.cost_models.comm_features import COMM_DIRECTIONS, comm_features
from neuroshard_pipeline.cost_models.compute import DIRECTIONS, ComputeCostModel
from neuroshard_pipeline.cost_models.compute_features import WORK_TERMS, shard_features
from neuroshard_pipeline.cost_models.models import CostModels
from neuroshard_pipeline.cost_models.network import Network, Normalisation
from neuroshard_pipeline.search.column_costs import compute_ms_of_sums, embedding_cost_ms
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.constraints import Constraints
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.tasks import random_tables


def network(rng, members, inputs, outputs, hidden=8):
    sizes = {"in": (inputs, hidden), "mid": (hidden, hidden), "out": (hidden, outputs)}
    weights = {f"{name}.weight": rng.normal(size=(members, *size)) for name, size in sizes.items()}
    return weights | {f"{name}.bias": rng.normal(size=(members, 1, size[1])) for name, size in sizes.items()}


def universal_models(seed, members=2, gates=2, pressures=2, log_once=-2.0):
    """Models of the trained architecture with random weights; a few shards on a rank open their gates."""
    rng = np.random.default_rng(seed)
    shards = [Shard(table, 0, table.embedding_dim) for table in random_tables(rng, 50)]
    work, context = shard_features(shards, 512)
    channels = DIRECTIONS * (1 + gates) + pressures
    weights = network(rng, members, context.shape[1], channels)
    weights["log_price"] = rng.normal(size=(members, work.shape[1], channels))
    weights["log_launch"] = rng.normal(size=(members, 1, DIRECTIONS)) - 2.0
    weights["once.terms"] = np.zeros((members, work.shape[1], 1))
    weights["once.terms"][:, list(WORK_TERMS).index("output_bytes")] = 1.0  # a term that all shards have
    weights["once.log_cost"] = rng.normal(size=(members, 1, DIRECTIONS)) + log_once
    weights["gate.log_weight"] = rng.normal(size=(members, pressures, DIRECTIONS * gates)) - 0.5
    weights["gate.bias"] = rng.normal(size=(members, 1, DIRECTIONS * gates)) - 2.0
    compute = ComputeCostModel(Network(weights, Normalisation.fit(work, context)), 512)
    networks = {}
    for direction in COMM_DIRECTIONS:
        work, context = comm_features(rng.uniform(0, 200, (40, 2)), rng.uniform(0, 2, (40, 2)), 512, direction)
        work, context = work.reshape(-1, work.shape[-1]), context.reshape(-1, context.shape[-1])
        made = network(rng, members, context.shape[1], 2)
        made["log_price"] = rng.normal(size=(members, work.shape[1] - 1, 1)) - 1.0
        networks[direction] = Network(made, Normalisation.fit(work, context))
    return CostModels(compute, CommCostModel(networks, 512, (2, 3)))


def every_split(table):
    """All multisets of widths that add up to the table's, as shards."""
    steps = table.embedding_dim // 4
    for count in range(1, steps + 1):
        for parts in itertools.combinations_with_replacement(range(1, steps + 1), count):
            if sum(parts) == steps:
                yield [Shard(table, 4 * sum(parts[:i]), 4 * part) for i, part in enumerate(parts)]


def costs_of(models, shards, ranks, world_size, batch_size=512):
    """Compute cost of the busiest rank, and embedding cost, of one plan."""
    embeddings = models.compute.shard_embeddings(shards, batch_size)
    sums, dims = np.zeros((world_size, embeddings.shape[1])), np.zeros(world_size)
    np.add.at(sums, list(ranks), embeddings)
    np.add.at(dims, list(ranks), [shard.embedding_dim for shard in shards])
    compute_ms = compute_ms_of_sums(models, sums, dims, batch_size).sum(axis=-1)
    return compute_ms.max(), embedding_cost_ms(models, compute_ms[None], dims[None], batch_size)[0]


def cheapest(task, models):
    """Least compute cost of the busiest rank and least embedding cost over all plans."""
    compute, total = np.inf, np.inf
    for splits in itertools.product(*(list(every_split(table)) for table in task.tables)):
        shards = [shard for split in splits for shard in split]
        for ranks in itertools.product(range(task.world_size), repeat=len(shards)):
            plan_compute, plan_total = costs_of(models, shards, ranks, task.world_size)
            compute, total = min(compute, plan_compute), min(total, plan_total)
    return compute, total


def tiny_task(seed, world_size):
    rng = np.random.default_rng(seed)
    return ShardingTask(random_tables(rng, 2, dims=(4, 8, 12)), world_size, 512, 2**40)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 2, 3])
@pytest.mark.parametrize("log_once", [-2.0, 4.0])
def test_no_plan_is_cheaper_than_the_bound(seed, world_size, log_once):
    """A rank pays a launch term once for all its shards; the bound holds for cheap and for expensive launch terms."""
    task, models = tiny_task(seed, world_size), universal_models(seed, log_once=log_once)
    bound = cost_bound(Problem(task, models, WEIGHTS_AND_OPTIMIZER))
    compute, total = cheapest(task, models)
    assert 0 < bound.compute_ms <= compute + 1e-9
    assert bound.compute_ms < bound.embedding_cost_ms <= total + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_a_convex_model_has_a_bound_too(seed):
    task, models = tiny_task(seed, 2), small_models(seed)
    bound = cost_bound(Problem(task, models, WEIGHTS_AND_OPTIMIZER), "convex")
    compute, _ = cheapest(task, models)
    assert 0 < bound.compute_ms <= compute + 1e-9


def test_the_bound_is_reached_by_equal_tables_on_as_many_ranks():
    """One unsplittable table per rank costs what the bound says."""
    tables = [Table(f"t{i}", 1000, 4, 5.0) for i in range(3)]
    models = universal_models(0)
    task = ShardingTask(tables, 3, 512, 2**40)
    bound = cost_bound(Problem(task, models, WEIGHTS_AND_OPTIMIZER))
    compute_ms, _ = costs_of(models, [Shard(table, 0, 4) for table in tables], [0, 1, 2], 3)
    assert bound.compute_ms == pytest.approx(compute_ms)


@pytest.mark.parametrize(("world_size", "least_gain"), [(1, 1.0), (3, 1.1)])
def test_constraints_that_forbid_splits_raise_the_bound(world_size, least_gain):
    """One rank holds all parts of a table, and a split saves nothing. No placement of whole tables is cheaper."""
    task, models = tiny_task(1, world_size), universal_models(1)
    free = cost_bound(Problem(task, models, WEIGHTS_AND_OPTIMIZER))
    whole_tables = ShardingTask(task.tables, world_size, 512, 2**40, constraints=Constraints(max_shards=1))
    bound = cost_bound(Problem(whole_tables, models, WEIGHTS_AND_OPTIMIZER))
    shards = [Shard(table, 0, table.embedding_dim) for table in task.tables]
    placements = itertools.product(range(world_size), repeat=len(shards))
    cheapest_ms = min(costs_of(models, shards, ranks, world_size)[0] for ranks in placements)
    assert least_gain * free.compute_ms - 1e-9 <= bound.compute_ms <= cheapest_ms + 1e-9


def test_there_is_no_bound_for_a_model_without_a_proof():
    assert cost_bound(Problem(tiny_task(0, 2), small_models(), WEIGHTS_AND_OPTIMIZER)) is None
