import itertools
from dataclasses import replace

import numpy as np
import pytest

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import priced
from neuroshard_pipeline.search.rank_order import (
    collectives_ms,
    ms_per_byte_of,
    order_ranks,
    order_text,
)
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.kinds import Tier
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from search.small_models import small_models
from search.topologies import two_level_topology

#: Two hosts of three ranks; the second has a slow uplink and slow links inside.
UNEVEN_HOSTS = two_level_topology([3, 3], [1e-8, 3e-8], [1e-7, 4e-7])


def a_plan(dims, **options):
    """One table per rank, as wide as `dims` says."""
    tables = [Table(f"t{i}", 10, dim, 1.0) for i, dim in enumerate(dims)]
    options = {"memory_bytes": 2**20} | options
    task = ShardingTask(tables, len(dims), 60, **options)
    return Plan(task, tuple(map(whole, tables)), tuple(range(len(dims))), "by hand")


def message_by_message_ms(dims, ms_per_byte, batch_size):
    """Cost of both collectives in ms, added up message by message."""
    world = range(len(dims))
    send = {(p, q): 4 * batch_size / len(dims) * dims[p] for p in world for q in world if p != q}
    total = 0.0
    for messages in (send, {(q, p): size for (p, q), size in send.items()}):
        out = [sum(size * ms_per_byte[p][q] for (p, q), size in messages.items() if p == r) for r in world]
        into = [sum(size * ms_per_byte[p][q] for (p, q), size in messages.items() if q == r) for r in world]
        total += max(*out, *into)
    return total


@pytest.mark.parametrize("seed", range(5))
def test_the_cost_is_that_of_all_messages(seed):
    rng = np.random.default_rng(seed)
    dims, cost = rng.integers(1, 50, 5).tolist(), rng.uniform(0, 1e-6, (5, 5)) * (1 - np.eye(5))
    assert collectives_ms(dims, cost, 60) == pytest.approx(message_by_message_ms(dims, cost.tolist(), 60))


@pytest.mark.parametrize(
    ("topology", "gain"),
    [
        # Little to gain: in any order, one host receives at least half of all columns over the slow uplink.
        (UNEVEN_HOSTS, 0.03),
        (two_level_topology([2, 4], [1e-8, 1e-8], [1e-7, 1e-7]), 0.08),
        (two_level_topology([2, 2, 2], [1e-8] * 3, [1e-7, 1e-7, 4e-7]), 0.35),
    ],
    ids=["two hosts, one slow", "a small and a large host", "three hosts, one slow"],
)
@pytest.mark.parametrize("seed", range(4))
def test_the_order_on_uneven_hosts_is_the_best_of_all_orders(seed, topology, gain):
    rng = np.random.default_rng(seed)
    dims = (4 * rng.integers(1, 40, 6)).tolist()
    plan = a_plan(sorted(dims))  # most columns on the last host
    ordered = order_ranks(plan, topology)
    before, after = (collectives_ms(p.dim_sums, topology, 60) for p in (plan, ordered))
    best = min(collectives_ms(order, topology, 60) for order in itertools.permutations(dims))
    assert sorted(ordered.dim_sums) == sorted(dims)
    assert after < (1 - gain) * before
    assert after <= (1 + 1e-9) * best


@pytest.mark.parametrize("seed", range(6))
def test_with_a_random_matrix_the_order_is_never_worse_and_close_to_the_best(seed):
    rng = np.random.default_rng(seed)
    cost = rng.lognormal(-14, 1, (6, 6))
    dims = (4 * rng.integers(1, 40, 6)).tolist()
    ordered = order_ranks(a_plan(dims), cost)
    best = min(collectives_ms(order, cost, 60) for order in itertools.permutations(dims))
    assert best <= collectives_ms(ordered.dim_sums, cost, 60) + 1e-15
    assert collectives_ms(ordered.dim_sums, cost, 60) <= min(collectives_ms(dims, cost, 60), 1.15 * best)


def test_a_reordered_plan_has_no_prediction_until_it_is_priced():
    plan = priced(a_plan([4, 8, 16, 32, 64, 128]), small_models())
    ordered = order_ranks(plan, UNEVEN_HOSTS)
    assert ordered.ranks != plan.ranks
    assert ordered.predicted is None
    assert priced(ordered, small_models()).predicted_cost_ms == pytest.approx(plan.predicted_cost_ms)


def test_limits_and_constraints_are_kept():
    forbidden = Constraints([TableConstraint("t5", forbidden_ranks=[0])])
    plan = a_plan([4, 8, 16, 32, 64, 128], memory_bytes=[2**20, 2**20, 700, 2**20, 2**20, 2**20], constraints=forbidden)
    ordered = order_ranks(plan, UNEVEN_HOSTS)  # `Plan` itself refuses what does not fit
    assert collectives_ms(ordered.dim_sums, UNEVEN_HOSTS, 60) < collectives_ms(plan.dim_sums, UNEVEN_HOSTS, 60)
    assert ordered.ranks[5] == 1  # the widest table belongs on the fast host; rank 0 is forbidden, rank 2 too small


@pytest.mark.parametrize(
    "sharding_type", ["row_wise", "table_row_wise", "grid_shard", "host_row_wise", "data_parallel"]
)
def test_column_wise_shards_move_and_shards_of_other_types_stay(sharding_type):
    """If 11 rows are cut, the blocks differ in size, and `Plan` itself refuses blocks in another order."""
    topology = two_level_topology([2, 2, 2], [1e-8] * 3, [1e-7, 1e-7, 4e-7])
    tier = Tier("host", "words", 0) if sharding_type == "host_row_wise" else None
    cut = Table("cut", 11, 24, 1.0, pooling="none" if tier else "sum", tier=tier)
    widths = [4, 8, 16, 32, 64, 128]
    tables = [Table(f"t{i}", 10, dim, 1.0) for i, dim in enumerate(widths)]
    task = ShardingTask([cut, *tables], 6, 60, 2**20, local_world_size=2)
    if sharding_type == "data_parallel":
        of_cut = 6 * [replace(whole(cut), sharding_type="data_parallel")]
    else:
        of_cut = row_shards(cut, sharding_type, 6 if sharding_type == "row_wise" else 2) * (3 if tier else 1)
    plan = Plan(task, (*of_cut, *map(whole, tables)), (*range(len(of_cut)), *range(6)), "by hand")
    ordered = order_ranks(plan, topology)
    staying = np.array(plan.dim_sums) - widths
    orders = [staying + np.array(order) for order in itertools.permutations(widths)]
    assert ordered.ranks[: len(of_cut)] == plan.ranks[: len(of_cut)]
    assert sorted(np.array(ordered.dim_sums) - staying) == widths
    found, before = (collectives_ms(p.dim_sums, topology, 60) for p in (ordered, plan))
    assert found < 0.9 * before
    assert found <= (1 + 1e-9) * min(collectives_ms(dims, topology, 60) for dims in orders)


def test_bandwidths_become_costs_of_a_byte():
    cost = ms_per_byte_of([[0.0, 50.0], [25.0, np.nan]], 2)  # the diagonal has no effect
    np.testing.assert_allclose(cost, [[0, 1 / 50e6], [1 / 25e6, 0]])  # 50 GB/s are 50e6 bytes per ms


@pytest.mark.parametrize(
    ("gb_per_s", "message"),
    [
        (np.zeros((2, 2)), "from rank 0 to rank 1 is 0"),
        ([[1.0, 2.0], [-3.0, 1.0]], "from rank 1 to rank 0 is -3"),
        ([[1.0, np.nan], [1.0, 1.0]], "from rank 0 to rank 1 is nan"),
        (np.ones((3, 3)), r"shape \(3, 3\), but 2 ranks need \(2, 2\)"),
        (None, r"shape \(\)"),
        ("x", "'x' must be a matrix of numbers"),
        ([[1.0], [1.0, 2.0]], "must be a matrix of numbers"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_impossible_bandwidths_are_refused_by_the_name_of_the_argument(gb_per_s, message):
    with pytest.raises(PlanError, match=f"gb_per_s .*{message}"):
        ms_per_byte_of(gb_per_s, 2)


def test_one_line_states_the_gain_of_an_order():
    plan = a_plan([4, 8, 16, 32, 64, 128])
    ordered = order_ranks(plan, UNEVEN_HOSTS)
    cost = UNEVEN_HOSTS.tolist()
    before_ms, after_ms = (message_by_message_ms(each.dim_sums, cost, 60) for each in (plan, ordered))
    moved = int((np.array(plan.ranks) != ordered.ranks).sum())
    assert order_text(plan, ordered, UNEVEN_HOSTS) == (
        f"links: {moved} shards went to other ranks, so that both collectives take {after_ms:.4g} instead of "
        f"{before_ms:.4g} ms together"
    )
    assert order_text(ordered, order_ranks(ordered, UNEVEN_HOSTS), UNEVEN_HOSTS) == (
        f"links: no better order of the ranks was found; both collectives take {after_ms:.4g} ms together"
    )
