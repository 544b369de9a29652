"""The lab's price of tiers and of ids that are sent once, computed by hand with round numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lab.networks import SIMPLE
from lab.test_step import CLUSTER, H100, HOST, SLOW, SYNC, cost, task, us

from neuroshard_pipeline.lab.device import lookup_cost_ms
from neuroshard_pipeline.lab.network import collective_us
from neuroshard_pipeline.lab.phases import AllToAll, Symmetric
from neuroshard_pipeline.lab.step import step_phases
from neuroshard_pipeline.lab.step_groups import Job, grouped
from neuroshard_pipeline.tables.dedup import deduplicated, looked_up
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task

ITEMS = Table("items", 4000, 8, 10.0, pooling="none")


def tiered(cuts, **fields):
    return tiered_task(task(ITEMS, world_size=4, local_world_size=2, tiers=True, **fields), {"items": cuts})


def host_rows(table):
    rows = row_shards(table, "host_row_wise", 2)
    return list(zip(rows + rows, range(4), strict=True))


def test_host_rows_are_exchanged_inside_hosts_and_their_gradients_between_hosts():
    """All 4000 rows are in the host tier: 50 samples per rank ask for 500 rows, half of them on each rank."""
    of = tiered(Cuts(0, 4000))
    (host,) = of.tables
    priced = cost(of, host_rows(host))
    # A rank sends 250 rows of 8 floats inside its host: 1e3 bytes per us after 8 us, or half as many from the start.
    exchange = 100 + 20 + min(8.0 / 0.5, 8 + 8.0)
    assert us(priced.forward_comm_ms) == pytest.approx([exchange] * 4)
    assert us(priced.backward_comm_ms) == pytest.approx([exchange] * 4)
    gradients = 4 * 2000 * 8
    # Bytes moved per byte of gradients: 1 to write zeros, 2 for a copy, and 3 for SGD.
    assert us(priced.dense_ms) == pytest.approx([3 * 10 + 6 * gradients / 1e3] * 4)
    # A tree passes 2 * gradients / 2 bytes over a card of 100 bytes per us, and takes 40 us to fill.
    hop = 50 * (1 + gradients / (gradients + 8192))
    assert us(priced.reduction_ms) == pytest.approx([100 + hop + 40 + gradients / 100] * 4)
    seen, samples = looked_up(host_rows(host)[0][0], of)
    assert samples == 100
    single = whole(replace(seen.table, pooling_factor=1.0, pooling="sum", tier=None))
    assert priced.forward_compute_ms == pytest.approx([lookup_cost_ms([single], 500, "none", SLOW)[0]] * 4)


def test_no_message_of_a_host_tier_leaves_its_host():
    of = tiered(Cuts(0, 4000))
    placed = host_rows(of.tables[0])
    network = SIMPLE.model_copy(update={"gpus_per_host": 2})
    groups = grouped([shard for shard, _ in placed], [rank for _, rank in placed], of)
    phases = step_phases(groups, Job(of, SLOW, network, HOST))
    messages = [phase.message_bytes for phase in phases if isinstance(phase, AllToAll)]
    assert len(messages) == 4  # lengths, ids, rows, gradients
    for sent in messages:
        assert (sent[:2, 2:] == 0).all()
        assert (sent[2:, :2] == 0).all()
        assert sent[0, 1] > 0
    teams = [phase.team.tolist() for phase in phases if isinstance(phase, Symmetric)]
    assert teams == [[0, 1, 0, 1], [0, 0, 1, 1]]  # gradients, then numbers of ids


def test_of_hot_rows_only_gradients_are_communicated():
    of = tiered(Cuts(4000))
    (hot,) = of.tables
    priced = cost(of, [(whole(hot, "data_parallel"), rank) for rank in range(4)])
    assert not priced.forward_comm_ms.any()
    assert not priced.backward_comm_ms.any()
    ids = 50 * 10
    # The search for each id's tier moves 24 numbers of 8 bytes per id; the host waits three times for its results.
    assert us(priced.input_dist_ms) == pytest.approx([30 * 10 + 24 * 8 * ids / 1e3 + 3 * SYNC] * 4)
    # Rows are copied to the positions of their ids, and gradients back; each copy reads and writes.
    assert us(priced.module_ms) == pytest.approx([2 * (10 + 2 * 4 * 8 * ids / 1e3)] * 4)
    gradients = 4 * 4000 * 8
    assert us(priced.reduction_ms) == pytest.approx([float(collective_us("all_reduce", gradients, 4, 2, SIMPLE))] * 4)
    # Bytes moved per byte of gradients: 1 to write zeros, 2 for a copy, and 3 for SGD.
    assert us(priced.dense_ms) == pytest.approx([3 * 10 + 6 * gradients / 1e3] * 4)


def test_ids_that_are_sent_once_cost_what_distinct_ids_cost_plus_a_search_and_copies():
    rows = [(shard, rank) for rank, shard in enumerate(row_shards(ITEMS, "row_wise", 4))]
    of = task(ITEMS, world_size=4, local_world_size=2)
    plain, once = cost(of, rows, H100, CLUSTER), cost(replace(of, index_dedup=True), rows, H100, CLUSTER)
    sent = deduplicated(ITEMS, of.batch_size, 4)
    as_sent = cost(
        replace(of, tables=[sent]), [(replace(shard, table=sent), rank) for shard, rank in rows], H100, CLUSTER
    )
    assert sent.pooling_factor < 0.8 * ITEMS.pooling_factor
    np.testing.assert_allclose(once.forward_comm_ms, as_sent.forward_comm_ms)
    np.testing.assert_allclose(once.forward_compute_ms, as_sent.forward_compute_ms)
    assert (once.forward_comm_ms < plain.forward_comm_ms).all()
    slow, slow_as_sent = (
        cost(replace(of, index_dedup=True), rows),
        cost(replace(of, tables=[sent]), [(replace(shard, table=sent), rank) for shard, rank in rows]),
    )
    ids, kernels = 50 * 10, SLOW.kernels
    search = 14 * 10 + (kernels.sort_bytes_per_id + 5 * 8) * ids / 1e3 + SYNC
    np.testing.assert_allclose(us(slow.input_dist_ms), np.add(us(slow_as_sent.input_dist_ms), search))
    # Gradients are put side by side before the gradients of repeated ids are added, not after.
    side_by_side = 10 + 2 * 4 * 8 * 50 * sent.pooling_factor / 1e3
    copies = 2 * 10 + (2 + 5) * 4 * 8 * ids / 1e3 - side_by_side
    np.testing.assert_allclose(us(slow.module_ms), np.add(us(slow_as_sent.module_ms), copies))


@pytest.mark.parametrize("cuts", [Cuts(20_000), Cuts(1000, 64_000)])
def test_tiers_of_long_sequences_save_most_of_the_exchange(cuts):
    """16 H100 on 2 hosts, four tables of 128 columns, each with 100 ids per sample of the default popularity."""
    tables = [Table(f"items{number}", 10**6, 128, 100.0, pooling="none") for number in range(4)]
    of = task(*tables, world_size=16, batch_size=16 * 1024, local_world_size=8, tiers=True)
    tiers = tiered_task(of, dict.fromkeys((table.name for table in tables), cuts))
    placed = [
        *((whole(t, "data_parallel"), rank) for t in tiers.tables if t.tier.kind == "hot" for rank in range(16)),
        *((s, 8 * h + r) for t in tiers.tables if t.tier.kind == "host" for h in (0, 1)
          for r, s in enumerate(row_shards(t, "host_row_wise", 8))),
        *((s, r) for t in tiers.tables if t.tier.kind == "cold" for r, s in enumerate(row_shards(t, "row_wise", 16))),
    ]  # fmt: skip
    flat = [(shard, rank) for table in tables for rank, shard in enumerate(row_shards(table, "row_wise", 16))]
    before, after = cost(of, flat, H100, CLUSTER), cost(tiers, placed, H100, CLUSTER)
    assert after.forward_comm_ms.max() < 0.25 * before.forward_comm_ms.max()
    assert after.step_ms < before.step_ms
