"""The lab's price of a step: cases computed by hand with round numbers, and invariants of all plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.networks import SIMPLE

from neuroshard_pipeline.lab.device import DeviceParams, KernelParams, ModelledDevice, lookup_cost_ms, modelled_device
from neuroshard_pipeline.lab.network import collective_us
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.params import lab_values
from neuroshard_pipeline.lab.phases import AllToAll, Symmetric
from neuroshard_pipeline.lab.step import StepCost, step_cost_ms, step_params, step_phases
from neuroshard_pipeline.lab.step_groups import Job, grouped
from neuroshard_pipeline.tables.lookups import local_table
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

H100, CLUSTER = modelled_device("h100"), network_preset("h100-ib400")
#: Without the prices of permutations, which `test_step_kernels` has.
HOST = step_params().model_copy(update={"permute_segment_ns": 0.0, "permute_number_ns": 0.0})
SYNC = HOST.host_sync_us
#: A GPU that moves 1e3 bytes per us and launches a kernel in 10 us.
SLOW = ModelledDevice(
    device=DeviceParams(hbm_gb_per_s=1, l2_mib=1, l2_bytes_per_clock=1, sms=1, clock_ghz=1, host_gb_per_s=1),
    kernels=KernelParams(**lab_values()["kernels"] | {"forward_launch_us": 10, "hbm_efficiency": 1}),
)
NARROW, WIDE = Table("narrow", 1000, 4, 2.0), Table("wide", 3000, 8, 1.0)


def task(*tables: Table, world_size=2, batch_size=200, **fields) -> ShardingTask:
    return ShardingTask(tables, world_size, batch_size, 2**40, **fields)


def by_rows(table: Table, ranks, kind="row_wise", columns=None) -> list[tuple[Shard, int]]:
    """Row shards of equal size, one on each of `ranks`."""
    rows = table.num_embeddings // len(ranks)
    offset, width = columns or (0, table.embedding_dim)
    return [(Shard(table, offset, width, rows * place, rows, kind), rank) for place, rank in enumerate(ranks)]


def replicas(table: Table, world_size: int) -> list[tuple[Shard, int]]:
    return [(whole(table, "data_parallel"), rank) for rank in range(world_size)]


def cost(of: ShardingTask, placed, device=SLOW, network=SIMPLE, **options) -> StepCost:
    shards, ranks = [shard for shard, _ in placed], [rank for _, rank in placed]
    return step_cost_ms(of, shards, ranks, device, network, **{"host": HOST} | options)


def us(values) -> list[float]:
    return (np.asarray(values) * 1e3).tolist()


def test_two_whole_tables_by_hand():
    """100 samples per rank; SIMPLE moves 1e3 bytes per us after a delay of 8 us or, if faster, 500 without delay."""
    priced = cost(task(NARROW, WIDE), [(whole(NARROW), 0), (whole(WIDE), 1)])
    # Rank 1 sends 8 columns of 100 samples: 3200 bytes. This message determines the cost of both ranks.
    assert us(priced.forward_comm_ms) == pytest.approx([100 + 20 + 3.2 / 0.5] * 2)
    # Backward, the gradients of these columns take the opposite way, which takes as long.
    assert us(priced.backward_comm_ms) == pytest.approx(us(priced.forward_comm_ms))
    first = 4 * 10 + 2 * (4 * 100 * 2 + 8 * 100 * 3) / 1e3 + SYNC  # lengths of 2 features, 3 ids per sample
    splits = 100 + 20 + 24 / 1e3 / 0.5 + SYNC  # 3 numbers of 8 bytes to the other rank
    lengths = 100 + 20 + 0.4 / 0.5
    ids = 100 + 20 + 1.6 / 0.5  # 200 ids for the table on rank 0
    ordered = [4 * 10 + 2 * (4 * 200 + 8 * 200 * factor) / 1e3 for factor in (2, 1)]
    offsets = 2 * 10 + 200 * (4 + 4 + 4 + 8) / 1e3
    # After the exchange, the host waits for the number of ids per feature, and makes the calls of the first lookup.
    after = offsets + SYNC + HOST.lookup_host_us
    expected = [first + splits + lengths + ids + last + after for last in ordered]
    assert us(priced.input_dist_ms) == pytest.approx(expected)
    # In each direction, a rank copies the 200 * D numbers of its own columns and the 100 * 12 of its own samples;
    # backward, it copies the latter twice.
    copies = [2 * (2 * 10 + 8 * 200 * dim / 1e3) + 10 + 3 * 8 * 100 * 12 / 1e3 for dim in (4, 8)]
    assert us(priced.module_ms) == pytest.approx(copies)
    assert not priced.reduction_ms.any()
    assert not priced.dense_ms.any()
    for rank, table in enumerate((NARROW, WIDE)):
        forward, backward = lookup_cost_ms([whole(table)], 200, "sgd", SLOW)
        assert (priced.forward_compute_ms[rank], priced.backward_compute_ms[rank]) == (forward, backward)


def test_row_shards_reduce_the_whole_output_on_every_rank():
    priced = cost(task(NARROW), by_rows(NARROW, (0, 1)))
    # 200 samples of 4 columns: 1600 of 3200 bytes leave. A ring of two GPUs reaches 1 GB/s * 2 / 2.5, or half of that
    # without the delay of 8 us.
    assert us(priced.reduction_ms) == pytest.approx([2 * (100 + 20 + 2 * 1.6 * 1.25)] * 2)
    assert not priced.forward_comm_ms.any()
    # Only the backward pass copies: a rank makes its own gradients contiguous and divides all gathered ones.
    assert us(priced.module_ms) == pytest.approx([2 * 10 + 8 * (100 * 4 + 200 * 4) / 1e3] * 2)


def test_a_row_shard_sees_its_share_of_the_ids():
    three_quarters = [(Shard(NARROW, 0, 4, 0, 750, "row_wise"), 0), (Shard(NARROW, 0, 4, 750, 250, "row_wise"), 1)]
    half = cost(task(NARROW), by_rows(NARROW, (0, 1)), H100)
    uneven = cost(task(NARROW, batch_size=2_000_000), three_quarters, H100)
    assert half.backward_compute_ms[0] == half.backward_compute_ms[1]
    assert uneven.backward_compute_ms[0] > 2 * uneven.backward_compute_ms[1]


def test_replicas_reduce_dense_gradients_and_exchange_no_ids():
    priced = cost(task(NARROW), replicas(NARROW, 2))
    gradients = 4 * 1000 * 4
    # Both passes over the ring of two GPUs take 20 us after a delay of 8 us, or twice as long without delay.
    assert us(priced.reduction_ms) == pytest.approx([100 + 20 + min(2 * 20, 8 + 20)] * 2)
    # Bytes moved per byte of gradients: 1 to write zeros, 2 for a copy, and 3 for SGD.
    assert us(priced.dense_ms) == pytest.approx([3 * 10 + 6 * gradients / 1e3] * 2)
    for part in (priced.input_dist_ms, priced.forward_comm_ms, priced.module_ms):
        assert not part.any()
    local = whole(replace(local_table(NARROW, 200, 2), name="local"))
    assert us(priced.forward_compute_ms) == pytest.approx([us(lookup_cost_ms([local], 100, "sgd", SLOW))[0]] * 2)


def test_table_row_wise_reduces_inside_hosts_and_sends_sums_between_them():
    """Two hosts of two ranks; the table is on host 0."""
    priced = cost(task(NARROW, world_size=4, local_world_size=2), by_rows(NARROW, (0, 1), "table_row_wise"))
    reduced = 100 + 20 + 2 * 1.6 * 1.25  # as in the row-wise test: 3200 bytes on each rank of host 0
    assert us(priced.reduction_ms) == pytest.approx([2 * reduced] * 2 + [0, 0])
    # Each rank of host 0 has 100 samples of 4 columns, and sends half of them to its counterpart at 0.05 GB/s.
    assert us(priced.forward_comm_ms) == pytest.approx([100 + 50 + 10 + 50 * 4 * 4 / 50] * 4)


def test_sequence_tables_exchange_a_row_per_id():
    rows = replace(NARROW, pooling="none")
    priced = cost(task(rows, WIDE), [(whole(rows), 0), (whole(WIDE), 1)])
    # Rank 0 sends 2 rows of 4 columns for each of 100 samples; the pooled table has an exchange of its own.
    pooled = cost(task(WIDE), [(whole(WIDE), 1)])
    assert us(priced.forward_comm_ms - pooled.forward_comm_ms) == pytest.approx([100 + 20 + 3.2 / 0.5] * 2)


def test_tables_of_two_modules_or_types_pay_for_two_exchanges():
    both = [(whole(NARROW), 0), (whole(WIDE), 1)]
    apart = replace(WIDE, module="other")
    one, two = cost(task(NARROW, WIDE), both), cost(task(NARROW, apart), [(whole(NARROW), 0), (whole(apart), 1)])
    assert (two.forward_comm_ms > one.forward_comm_ms + 0.1).all()
    assert (two.input_dist_ms > one.input_dist_ms + 0.3).all()
    mixed = cost(task(NARROW, WIDE), [(whole(NARROW), 0), *by_rows(WIDE, (0, 1))])
    assert (mixed.input_dist_ms > one.input_dist_ms + 0.3).all()


@pytest.mark.parametrize(
    ("kind", "world_size", "all_to_alls", "reductions"),
    [
        ("column_wise", 4, 3 + 2, 0),
        ("row_wise", 4, 3, 2),
        ("table_row_wise", 4, 3 + 2, 2),
        ("table_row_wise", 2, 3, 2),
        ("grid_shard", 4, 3 + 2, 2),
        ("data_parallel", 4, 0, 1),
    ],
)
def test_as_many_collectives_as_torchrec_runs(kind, world_size, all_to_alls, reductions):
    """The numbers are those of the calls of torch.distributed by TorchRec 1.8 on gloo, with two ranks per host."""
    placed = {
        "column_wise": [(whole(WIDE), 0)],
        "row_wise": by_rows(WIDE, range(world_size)),
        "table_row_wise": by_rows(WIDE, (0, 1), "table_row_wise"),
        "grid_shard": by_rows(WIDE, (0, 1), "grid_shard", (0, 4)) + by_rows(WIDE, (2, 3), "grid_shard", (4, 4)),
        "data_parallel": replicas(WIDE, world_size),
    }[kind]
    of = task(WIDE, world_size=world_size, local_world_size=2)
    job = Job(of, SLOW, SIMPLE, HOST)
    phases = step_phases(grouped([shard for shard, _ in placed], [rank for _, rank in placed], of), job)
    together = [phase for phase in phases if isinstance(phase, Symmetric)]
    found = sum(isinstance(phase, AllToAll) for phase in phases) + sum(p.part == "input_dist" for p in together)
    assert (found, sum(phase.part == "reduction" for phase in together)) == (all_to_alls, reductions)


def test_waiting_ends_when_the_slowest_rank_arrives():
    busy = Table("busy", 10**6, 128, 50.0)
    priced = cost(task(NARROW, busy, batch_size=65536), [(whole(NARROW), 0), (whole(busy), 1)], H100, CLUSTER)
    assert priced.waiting_ms[1] == pytest.approx(0, abs=1e-9)
    assert priced.waiting_ms[0] > 1
    assert priced.rank_ms[0] == pytest.approx(priced.rank_ms[1], rel=0.1)


def test_half_precision_halves_transfers_and_adds_conversions():
    tables = [Table(f"t{index}", 10**6, 128, 1.0) for index in range(8)]
    placed = [(whole(table), rank) for rank, table in enumerate(tables)]
    of = task(*tables, world_size=8, batch_size=8 * 65536)
    single, half = (cost(replace(of, comm_precision=name), placed, H100, CLUSTER) for name in ("fp32", "bf16"))
    assert half.forward_comm_ms.sum() == pytest.approx(0.5 * single.forward_comm_ms.sum(), rel=0.1)
    assert (half.module_ms > single.module_ms).all()
    assert (half.input_dist_ms == single.input_dist_ms).all()


def test_replica_groups_average_weights_inside_a_host_or_between_hosts():
    """On hosts of 8 GPUs, two groups of 4 ranks share a host, but a group of 8 ranks has a host of its own."""
    tables = [Table(f"t{index}", 10**6, 64, 1.0) for index in range(8)]
    for world_size, hosts in ((4, 1), (8, 2)):
        placed = [(whole(table), rank) for rank, table in enumerate(tables[:world_size])]
        one = task(*tables[:world_size], world_size=world_size, batch_size=1024)
        two = replace(one, num_replica_groups=2, sync_interval=4)
        added = cost(two, placed, H100, CLUSTER).reduction_ms - cost(one, placed, H100, CLUSTER).reduction_ms
        expected = float(collective_us("all_reduce", 4 * 64 * 10**6, 2, hosts, CLUSTER)) / 4
        assert us(added) == pytest.approx([expected] * world_size)


def test_gradients_of_replicas_are_reduced_over_all_replica_groups():
    of = task(NARROW, world_size=8, batch_size=800)
    many = replace(of, num_replica_groups=4)
    one, all_groups = (cost(each, replicas(NARROW, 8), H100, CLUSTER).reduction_ms for each in (of, many))
    assert us(one)[0] == pytest.approx(float(collective_us("all_reduce", 4 * 4000, 8, 1, CLUSTER)))
    assert us(all_groups)[0] == pytest.approx(float(collective_us("all_reduce", 4 * 4000, 32, 4, CLUSTER)))


def test_means_are_divided_in_a_pass_over_their_gradients():
    mean = replace(WIDE, pooling="mean")
    sums, means = (cost(task(NARROW, of), [(whole(NARROW), 0), (whole(of), 1)]).module_ms for of in (WIDE, mean))
    assert us(means - sums) == pytest.approx([0, 10 + 2 * 4 * 200 * 8 / 1e3])


def test_a_pipelined_input_dist_costs_nothing():
    placed = [(whole(NARROW), 0), (whole(WIDE), 1)]
    priced = cost(task(NARROW, WIDE), placed)
    hidden = cost(task(NARROW, WIDE, pipelines_input_dist=True), placed)
    assert priced.step_ms - hidden.step_ms == pytest.approx(priced.input_dist_ms.max(), rel=0.01)
    assert not hidden.input_dist_ms.any()


def test_an_all_to_all_of_equal_volumes_costs_what_collective_us_states():
    tables = [Table(f"t{index}", 10**6, 64, 3.0) for index in range(16)]
    of = task(*tables, world_size=16, batch_size=16 * 1024, local_world_size=8)
    priced = cost(of, [(whole(table), rank) for rank, table in enumerate(tables)], H100, CLUSTER)
    expected = float(collective_us("alltoall", 4 * 64 * 16 * 1024, 16, 2, CLUSTER))
    assert us(priced.forward_comm_ms) == pytest.approx([expected] * 16)
    assert us(priced.backward_comm_ms) == pytest.approx([expected] * 16)


@st.composite
def plans(draw):
    """A task on two hosts of two ranks, and a plan of it with any sharding types but that of host tiers."""
    placed, tables = [], []
    for index in range(draw(st.integers(1, 6))):
        table = Table(
            f"t{index}", 4000 * 10 ** draw(st.integers(0, 3)), draw(st.sampled_from([8, 64])), draw(st.floats(0.5, 60))
        )
        rank, host = draw(st.integers(0, 3)), draw(st.integers(0, 1))
        on_host = (2 * host, 2 * host + 1)
        tables.append(table)
        placed += draw(
            st.sampled_from(
                [
                    [(whole(table), rank)],
                    [(Shard(table, 0, 4), rank), (Shard(table, 4, table.embedding_dim - 4), 3 - rank)],
                    by_rows(table, range(4)),
                    by_rows(table, on_host, "table_row_wise"),
                    by_rows(table, on_host, "grid_shard", (0, 4))
                    + by_rows(table, (3 - on_host[1], 3 - on_host[0]), "grid_shard", (4, table.embedding_dim - 4)),
                    replicas(table, 4),
                ]
            )
        )
    of = task(*tables, world_size=4, batch_size=4 * draw(st.sampled_from([16, 1000, 30_000])), local_world_size=2)
    return of, placed


@given(plans(), st.integers(0, 5))
def test_more_ids_are_never_cheaper(plan, which):
    of, placed = plan
    chosen = of.tables[which % len(of.tables)]
    more = replace(chosen, pooling_factor=2 * chosen.pooling_factor)
    swapped = [(replace(shard, table=more) if shard.table == chosen else shard, rank) for shard, rank in placed]
    tables = [more if table == chosen else table for table in of.tables]
    before, after = cost(of, placed, H100, CLUSTER), cost(replace(of, tables=tables), swapped, H100, CLUSTER)
    assert after.step_ms >= before.step_ms * (1 - 1e-9)


@given(plans(), st.sampled_from([(1, 0, 2, 3), (0, 1, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)]))
def test_names_of_ranks_and_hosts_do_not_matter(plan, order):
    of, placed = plan
    before = cost(of, placed, H100, CLUSTER)
    after = cost(of, [(shard, order[rank]) for shard, rank in placed], H100, CLUSTER)
    for part in vars(before):
        assert vars(after)[part][list(order)] == pytest.approx(vars(before)[part], abs=1e-9), part


@given(plans())
def test_parts_are_finite_and_not_negative(plan):
    priced = cost(*plan, H100, CLUSTER)
    for part, values in vars(priced).items():
        assert np.isfinite(values).all(), part
        assert (values >= 0).all(), part
    assert priced.step_ms == pytest.approx(
        max(sum(values[rank] for values in vars(priced).values()) for rank in range(4))
    )


def test_one_rank_pays_no_communication():
    tables = [with_profile(table, 200) for table in (NARROW, WIDE)]
    priced = cost(task(*tables, world_size=1), [(whole(tables[0]), 0), (whole(tables[1], "data_parallel"), 0)], H100)
    for part in (priced.forward_comm_ms, priced.backward_comm_ms, priced.reduction_ms, priced.waiting_ms):
        assert not part.any()
    assert priced.forward_compute_ms[0] > 0
