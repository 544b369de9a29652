"""The bound of benchmarks/tiers/communication_bound.py, compared with the communication times of plans in the lab.

The plans are random ones, those of `least_communication`, and those of a tiny task. Its tables have any number of hot
rows, and any even number of host rows, because a host has two ranks.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from communication_bound import communication_bound
from fewest_bytes import placed_shards_of
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_reductions import reduction_lines
from least_communication import plan_with_least_communication
from row_popularity import POPULARITIES, RowPopularity
from sequence_draws import SequenceIds
from sequence_tasks import SCALES, SequenceTask, judged, judged_shards, sequence_task
from tier_costs import NETWORK, collectives_ms

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.lab.network import collective_us
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task

PLENTY = 2**40
TOPOLOGIES = [(8, 8), (8, 4), (8, 2), (4, 1)]


def placed(task, ranks_of):
    """Shards and ranks; a cold or untiered table is row-wise, or whole on the rank that `ranks_of` gives."""
    found = []
    for table in task.tables:
        rank = ranks_of(table) if table.tier is None or table.tier.kind == "cold" else None
        found += placed_shards_of(table, task) if rank is None else [(whole(table), rank)]
    return [shard for shard, _ in found], [rank for _, rank in found]


def communication_ms(source, task, ranks_of):
    """The lab's communication time of a plan, and the memory of its fullest rank."""
    shards, ranks = placed(task, ranks_of)
    used = max(default_memory().bytes_of_ranks(shards, ranks, task))
    return collectives_ms(*judged_shards(task, shards, source.sources), ranks), used


def bound_ms(source, task):
    return communication_bound(task, source.popularities, default_memory(), NETWORK).least_ms


@settings(max_examples=8)
@given(
    st.sampled_from(POPULARITIES),
    st.sampled_from(TOPOLOGIES),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_no_random_plan_communicates_faster_even_if_the_limit_is_its_own_memory(popularity, ranks, dedup, seed):
    source, rng = sequence_task(popularity, *ranks, SCALES["gloo"]), np.random.default_rng(seed)
    task = replace(source.task, memory_bytes=PLENTY, tiers=True, index_dedup=dedup)
    cuts = {}
    for table in task.tables:
        hot, host = (int(table.num_embeddings * 10 ** rng.uniform(-4, -0.4)) for _ in range(2))
        several = task.num_hosts > 1
        kept = rng.integers(2, size=2).tolist()
        own = Cuts(hot * kept[0], several * kept[1] * (host - host % task.ranks_per_host))
        cuts |= {table.name: own} if own else {}
    row_wise = rng.uniform()
    variant = tiered_task(task, cuts, source.curves) if cuts else task
    spent, used = communication_ms(
        source, variant, lambda _: None if rng.uniform() < row_wise else int(rng.integers(task.world_size))
    )
    assert bound_ms(source, replace(task, memory_bytes=int(used))) <= spent * (1 + 1e-9)


def tiny_source(local_batch):
    """Two tables of four rows on two hosts with two ranks each."""
    popularity = RowPopularity(np.array([1, 1, 2]), np.array([0.5, 0.3, 0.1]))
    tables, sources = [], {}
    for name, length in (("a", 30.0), ("b", 3.0)):
        unique_rows, reuse = popularity.profile(round(4 * local_batch * length))
        tables.append(Table(name, 4, 64, length, unique_rows, reuse, pooling="none", module="m"))
        sources[name] = SequenceIds(tables[-1], popularity)
    task = ShardingTask(tables, 4, 4 * local_batch, PLENTY, local_world_size=2, tiers=True)
    return SequenceTask(task, sources)


@pytest.mark.parametrize(("local_batch", "dedup"), [(8, False), (8192, True)])
def test_no_cuts_of_a_tiny_task_communicate_faster(local_batch, dedup):
    source = tiny_source(local_batch)
    task = replace(source.task, index_dedup=dedup)
    of_table = [Cuts(hot, host) for hot in range(5) for host in range(0, 5 - hot, 2)]
    best = np.inf
    for own in product(of_table, repeat=2):
        cuts = {name: cut for name, cut in zip("ab", own, strict=True) if cut}
        variant = tiered_task(task, cuts, source.curves) if cuts else task
        for rank in (None, 0):
            best = min(best, communication_ms(source, variant, lambda _, rank=rank: rank)[0])
    assert 0.5 * best <= bound_ms(source, task) <= best * (1 + 1e-9)


@pytest.mark.parametrize("popularity", POPULARITIES)
@pytest.mark.parametrize("dedup", [False, True])
def test_plans_of_least_communication_come_close_to_the_bound_within_the_memory(popularity, dedup):
    source = sequence_task(popularity, 16, 8, replace(SCALES["lab-16"], tables=4))
    task = replace(source.task, index_dedup=dedup)
    plan = plan_with_least_communication(task, source.popularities, source.curves, load_cost_models("h100"), NETWORK)
    assert max(plan.memory_bytes) <= task.memory_bytes
    spent = collectives_ms(*judged(plan, source.sources), plan.ranks)
    assert bound_ms(source, task) * (1 - 1e-9) <= spent <= 1.06 * bound_ms(source, task)


def test_more_memory_never_raises_the_bound():
    source = sequence_task("published", 8, 4, SCALES["gloo"])
    bounds = [bound_ms(source, replace(source.task, memory_bytes=int(source.task.memory_bytes * k))) for k in (1, 2, 9)]
    assert (np.diff(bounds) <= 1e-9 * bounds[0]).all()
    assert bounds[0] > 1.001 * bounds[-1]


@pytest.mark.parametrize(("ranks", "hosts"), [(8, 1), (16, 2), (128, 16), (2, 2), (16, 16)])
def test_reductions_cost_at_least_their_lines(ranks, hosts):
    sizes = np.geomspace(1e2, 1e9, 60)
    lines = np.array([fixed + rate * sizes for fixed, rate in reduction_lines(NETWORK, True, ranks, hosts)])
    spent = collective_us("all_reduce", sizes, ranks, hosts, NETWORK)
    assert (lines.min(axis=0) <= spent * (1 + 1e-12)).all()
    assert (spent <= lines.min(axis=0) + 1.01 * NETWORK.fabric.hop_us * np.log2(hosts) + 1e-9).all()


def test_tasks_without_communication_are_refused():
    source = sequence_task("flat", 8, 4, SCALES["quick"])
    with pytest.raises(TaskError, match="several ranks, one replica group and sequence tables"):
        bound_ms(source, replace(source.task, world_size=1, local_world_size=None))
