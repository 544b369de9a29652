import dataclasses

import numpy as np
import pandas as pd
import pytest
from sequence_draws import sequence_tables

from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.evaluation.plan_samples import (
    backward_comm_samples,
    forward_comm_samples,
    measured_comm_ms,
    measured_compute_ms,
    measured_reduction_ms,
    own_costs_ms,
    rank_compute_samples,
    reduction_samples,
    session_marks,
)
from neuroshard_pipeline.evaluation.totals import plan_costs_frame, plan_totals
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.tables.dedup import looked_up
from neuroshard_pipeline.tables.ids import look_up_counts
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task

A, B, C = (Table(name, 100, 16, 2.0) for name in "abc")
TASK = ShardingTask([A, B, C], world_size=3, batch_size=32, memory_bytes=2**20, task_id="first")
COST = PlanCost((1.0, 2.0, 0.0), (1.0, 2.0, 0.0), (0.5, 0.1, 4.0), (0.2, 0.2, 0.1))


def plans():
    left, right = Shard(A, 0, 8), Shard(A, 8, 8)
    return [
        Plan(TASK, (whole(A), whole(B), whole(C)), (0, 0, 1), "one", COST),
        Plan(TASK, (whole(B), whole(C), whole(A)), (2, 1, 2), "two", COST),
        Plan(TASK, (left, whole(B), right, whole(C)), (0, 1, 2, 2), "three", COST),
    ]


def compute_costs(samples, failing=()):
    """Forward 1 ms per shard, backward 2 ms."""
    rows = [
        (s.sample_id, np.nan, np.nan, "broke") if s.sample_id in failing else (s.sample_id, n, 2.0 * n, None)
        for s in samples
        for n in [float(len(s.shards))]
    ]
    return pd.DataFrame(rows, columns=["sample_id", "forward_ms", "backward_ms", "error"])


def comm_costs(samples):
    rows = [
        (s.sample_id, rank, 1.0 + max(s.start_skew_ms) - s.start_skew_ms[rank], 0.1 * s.dim_sums[rank], None)
        for s in samples
        for rank in range(s.world_size)
    ]
    return pd.DataFrame(rows, columns=["sample_id", "rank", "forward_ms", "backward_ms", "error"])


def test_ranks_with_the_same_shards_share_a_sample():
    ranks = rank_compute_samples(plans())
    one, two, three = ranks.sample_ids
    assert one[0] == two[2]  # A and B whole, in another order
    assert one[1] == two[1]
    assert one[2] == two[0] == (None,)
    assert len(ranks.samples) == len({sample.sample_id for sample in ranks.samples}) == 5
    halves = next(sample for sample in ranks.samples if sample.sample_id == three[0][0])
    assert [shard.embedding_dim for shard in halves.shards] == [8]


def test_sample_ids_are_stable_and_know_the_batch_size():
    ids = rank_compute_samples(plans()).sample_ids
    assert ids == rank_compute_samples(plans()).sample_ids
    larger = ShardingTask([A, B, C], 3, 64, 2**20)
    other = rank_compute_samples([Plan(larger, tuple(map(whole, (A, B, C))), (0, 0, 1), "one")]).sample_ids[0]
    assert other[0] != ids[0][0]


def test_three_phases_add_up():
    found = plans()
    ranks = rank_compute_samples(found)
    compute = measured_compute_ms(ranks, compute_costs(ranks.samples))
    assert compute == [(6.0, 3.0, 0.0), (0.0, 3.0, 6.0), (3.0, 3.0, 6.0)]
    backward_samples = backward_comm_samples(found)
    assert all(sample.start_skew_ms == (0.0, 0.0, 0.0) for sample in backward_samples.samples)
    backward = measured_comm_ms(backward_samples, comm_costs(backward_samples.samples), "backward")
    forward_samples = forward_comm_samples(found, compute, backward)
    np.testing.assert_allclose(forward_samples.samples[0].start_skew_ms, (9.2, 4.6, 0.0))
    forward = measured_comm_ms(forward_samples, comm_costs(forward_samples.samples), "forward")
    frame = plan_costs_frame(found, {"compute": compute, "forward_comm": forward, "backward_comm": backward})
    assert len(frame) == 9
    measured = plan_totals(frame).set_index("sharder")["measured_ms"]
    assert measured["one"] == pytest.approx(6.0 + 3.2 + 1.0)
    assert plan_totals(frame)["predicted_ms"].tolist() == pytest.approx([COST.embedding_cost_ms] * 3)


def test_a_failed_measurement_is_null_and_leaves_the_rest():
    found = plans()
    ranks = rank_compute_samples(found)
    (broken,) = ranks.sample_ids[0][0]
    compute = measured_compute_ms(ranks, compute_costs(ranks.samples, failing={broken}))
    assert np.isnan(compute[0][0])
    collectives = forward_comm_samples(found, compute, [(0.0,) * 3] * 3)
    assert [names == ((None,),) * 3 for names in collectives.sample_ids] == [True, True, False]
    forward = measured_comm_ms(collectives, comm_costs(collectives.samples), "forward")
    costs = plan_totals(
        plan_costs_frame(found, {"compute": compute, "forward_comm": forward, "backward_comm": [(0.0,) * 3] * 3})
    )
    assert costs["measured_ms"].isna().tolist() == [True, True, False]


#: By the number of ranks of a reduction, the number of hosts on which it is measured.
HOSTS = {2: 1, 4: 2}
GRID = Table("grid", 90, 16, 4.0, module="other")


def mixed_plan():
    """Whole, row-wise and replicated tables of one module, and a `grid_shard` one of another, on 2 hosts of 2 ranks."""
    half = Table("half", 100, 16, 2.0, data_type="fp16")
    task = ShardingTask([A, B, C, GRID, half], 4, 32, 2**20, task_id="mixed", local_world_size=2)
    placed = [
        (whole(A), 0),
        (whole(half), 0),
        *zip(row_shards(B, "row_wise", 4), range(4), strict=True),
        *((whole(C, "data_parallel"), rank) for rank in range(4)),
        *zip(row_shards(GRID, "grid_shard", 2, 0, 12), (0, 1), strict=True),
        *zip(row_shards(GRID, "grid_shard", 2, 12, 4), (2, 3), strict=True),
    ]
    shards, ranks = zip(*placed, strict=True)
    cost = dataclasses.replace(COST, **{field.name: (1.0,) * 4 for field in dataclasses.fields(COST)})
    return Plan(task, shards, ranks, "mixed", cost)


def kernel(sample):
    """Batch size, and name, rows and width of every table of a kernel."""
    shards = ((shard.table.name, shard.table.num_embeddings, shard.embedding_dim) for shard in sample.shards)
    return (sample.batch_size, *shards)


def test_a_kernel_per_module_type_and_data_type():
    plan = mixed_plan()
    kernels = rank_compute_samples([plan])
    by_id = {sample.sample_id: sample for sample in kernels.samples}
    (ranks,) = kernels.sample_ids
    shown = [sorted(kernel(by_id[name]) for name in names if name is not None) for names in ranks]
    rest = [(8, ("c", 100, 16)), (32, ("b", 25, 16))]  # a replica sees the samples of its rank
    assert shown[0] == sorted([*rest, (32, ("a", 100, 16)), (32, ("half", 100, 16)), (32, ("grid", 45, 12))])
    assert shown[1] == sorted([*rest, (32, ("grid", 45, 12))])
    assert shown[3] == sorted([*rest, (32, ("grid", 45, 4))])
    assert all(shard.sharding_type == "column_wise" for sample in kernels.samples for shard in sample.shards)
    pooling = {s.table.name: s.table.pooling_factor for sample in kernels.samples for s in sample.shards}
    assert pooling == {"a": 2.0, "half": 2.0, "b": 0.5, "c": 2.0, "grid": 2.0}


def test_costs_of_kernels_and_collectives_add_up():
    """A lookup kernel costs 3 ms, an all-to-all as in `comm_costs`, a reduction 2 ms; the start skew counts once."""
    plan = mixed_plan()
    kernels, backward, parts = (
        rank_compute_samples([plan]),
        backward_comm_samples([plan]),
        reduction_samples([plan], HOSTS.__getitem__),
    )
    assert measured_compute_ms(kernels, compute_costs(kernels.samples)) == [(15.0, 9.0, 9.0, 9.0)]
    volumes = sorted(sample.dim_sums for sample in backward.samples)
    assert volumes == [(6, 6, 2, 2), (32, 0, 0, 0)]
    (backward_ms,) = measured_comm_ms(backward, comm_costs(backward.samples), "backward")
    assert backward_ms == pytest.approx((3.8, 0.6, 0.2, 0.2))
    forward = forward_comm_samples([plan], [(1.0, 2.0, 3.0, 4.0)], [(0.0,) * 4])
    assert sorted(sample.start_skew_ms for sample in forward.samples) == [(0.0,) * 4, (0.0, 1.0, 2.0, 3.0)]
    assert measured_comm_ms(forward, comm_costs(forward.samples), "forward") == [(5.0, 4.0, 3.0, 2.0)]
    sizes = {(s.collective, s.world_size, s.hosts, s.size_bytes) for s in parts.samples}
    rows = {(4, 2, 4 * 32 * 16), (2, 1, 4 * 32 * 12), (2, 1, 4 * 32 * 4)}
    expected = {(name, *of) for of in rows for name in ("reduce_scatter", "all_gather")}
    assert sizes == expected | {("all_reduce", 4, 2, 4 * 100 * 16)}
    costs = pd.DataFrame({"sample_id": [s.sample_id for s in parts.samples], "cost_ms": 2.0, "error": None})
    assert measured_reduction_ms(parts, costs) == [(10.0,) * 4]
    costs.loc[0, ["cost_ms", "error"]] = [np.nan, "broke"]
    assert np.isnan(measured_reduction_ms(parts, costs)[0]).any()


def test_a_plan_without_reductions_has_null_and_without_all_to_all_zero():
    (none,) = measured_reduction_ms(
        reduction_samples(plans()[:1], HOSTS.__getitem__), pd.DataFrame(columns=["sample_id", "cost_ms", "error"])
    )
    assert np.isnan(none).all()
    task = ShardingTask([C], 2, 32, 2**20)
    plan = Plan(task, (whole(C, "data_parallel"),) * 2, (0, 1), "copies")
    collectives = backward_comm_samples([plan])
    assert collectives.samples == []
    assert measured_comm_ms(collectives, comm_costs([]), "backward") == [(0.0, 0.0)]


def test_ranks_start_after_all_their_own_work():
    """Compute and reductions are measured; input dist and module, 1 ms each, are predicted."""
    plan = mixed_plan()
    assert own_costs_ms([plan], [(1.0, 2.0, 3.0, 4.0)], [(0.5, 0.5, 0.0, 0.0)]) == [(3.5, 4.5, 5.0, 6.0)]
    assert own_costs_ms(plans()[:1], [(1.0, 2.0, 3.0)], None) == [(1.0, 2.0, 3.0)]
    failed = own_costs_ms([plan], [(1.0, 2.0, 3.0, 4.0)], [(np.nan, 0.5, 0.0, 0.0)])
    assert forward_comm_samples([plan], failed, [(0.0,) * 4]).samples == []
    without = own_costs_ms([*plans()[:1], plan], [(1.0,) * 3, (1.0,) * 4], [(np.nan,) * 3, (2.0,) * 4])
    assert without == [(1.0,) * 3, (5.0,) * 4]  # the first plan has no reductions


def test_sequence_tables_are_looked_up_apart():
    sequences = [Table("s", 100, 16, 2.5, pooling="none"), Table("t", 100, 8, 2.0, pooling="none")]
    task = ShardingTask([A, *sequences], 2, 32, 2**20)
    plan = Plan(task, tuple(map(whole, task.tables)), (0, 0, 0), "one")
    found = rank_compute_samples([plan])
    assert [[shard.table.name for shard in sample.shards] for sample in found.samples] == [["a"], ["s"], ["t"]]
    pooled, sequence = backward_comm_samples([plan]).samples
    assert (pooled.dim_sums, sequence.dim_sums) == ((16, 0), (2.5 * 16 + 2 * 8, 0))


def test_plans_with_tables_in_host_memory_are_not_measured():
    managed = Table("a", 100, 16, 2.0, compute_kernel="fused_uvm")
    plan = Plan(ShardingTask([managed], 1, 8, 2**20, host_memory_bytes=2**20), (whole(managed),), (0,), "one")
    with pytest.raises(MeasurementError, match=r"plan of one has table 'a' in host memory .* without host_memory_byt"):
        rank_compute_samples([plan])


@pytest.mark.parametrize("samples", [rank_compute_samples, backward_comm_samples])
def test_plans_with_host_tiers_are_not_measured(samples):
    """No campaign measures their all-to-alls inside hosts and their reductions among ranks at equal places of hosts."""
    tables = sequence_tables("steep", [20], [32], [5000], 512)
    task = ShardingTask(tables, 4, 512, 2**40, local_world_size=2, tiers=True)
    tiered = tiered_task(task, {tables[0].name: Cuts(10, 20)})
    hot, host, cold = tiered.tables
    shards = [whole(hot, "data_parallel")] * 4 + 2 * row_shards(host, "host_row_wise", 2)
    shards += row_shards(cold, "row_wise", 4)
    plan = Plan(tiered, tuple(shards), (0, 1, 2, 3) * 3, "tiered")
    with pytest.raises(MeasurementError, match=rf"tiered has table '{host.name}' on every host .* without tiers"):
        samples([plan])


def test_the_measured_lookups_are_those_that_are_priced():
    """With `index_dedup`, ranks send an id once, so a shard gets no id more often than there are ranks."""
    (sequence,) = sequence_tables("steep", [20], [32], [5000], 512)
    task = ShardingTask([A, sequence], 2, 512, 2**20, index_dedup=True)
    shards = (whole(A), *row_shards(sequence, "row_wise", 2))
    found = rank_compute_samples([Plan(task, shards, (0, 0, 1), "one")])
    by_id = {sample.sample_id: sample for sample in found.samples}
    kernels = [by_id[name] for names in found.sample_ids[0] for name in names if name is not None]
    assert [(of.shards[0], of.batch_size) for of in kernels] == [looked_up(shard, task) for shard in shards]
    assert len(kernels[1].shards) == 1
    seen = kernels[1].shards[0].table
    assert look_up_counts(seen, round(seen.pooling_factor * 512)).max() <= 2
    every = look_up_counts(sequence, round(sequence.pooling_factor * 512))
    assert every.max() > 20
    assert seen.pooling_factor < 0.8 * sequence.pooling_factor / 2  # the shard has half of the rows


def test_marks_know_types_and_rows():
    def marked(sharding_type, rows=100):
        table = dataclasses.replace(B, num_embeddings=rows)
        halves = (Shard(table, 0, 8), Shard(table, 8, 8))
        shards = halves if sharding_type == "column_wise" else tuple(row_shards(table, sharding_type, 2))
        return session_marks([Plan(ShardingTask([table], 2, 32, 2**20), shards, (0, 1), "one")])

    assert marked("row_wise") != marked("table_row_wise")
    for sharding_type in ("column_wise", "row_wise"):
        assert marked(sharding_type) == marked(sharding_type)
        assert marked(sharding_type) != marked(sharding_type, rows=200)


def test_frames_without_measurements_or_plans_keep_the_columns():
    frame = plan_costs_frame(plans())
    assert frame["measured_compute_ms"].isna().all()
    assert list(plan_costs_frame([]).columns) == list(frame.columns)
