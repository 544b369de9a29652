"""What tables in host memory add to the price of a step on a modelled GPU and network."""

from dataclasses import replace

import numpy as np
import pytest

from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.step import step_cost_ms
from neuroshard_pipeline.tables.host_memory import host_link_bytes
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

TABLE = Table("a", 10**6, 64, 20.0)
OTHER = Table("b", 10**6, 64, 20.0)


def cost_of(table, kind="column_wise", device="h100"):
    task = ShardingTask([table, OTHER], 2, 8192, 2**40, "rowwise_adagrad", host_memory_bytes=2**40)
    shards = row_shards(table, kind, 2) if kind == "row_wise" else [whole(table)]
    ranks = [*range(len(shards)), 1]
    cost = step_cost_ms(task, [*shards, whole(OTHER)], ranks, modelled_device(device), network_preset("h100-ib400"))
    return task, cost


def in_host(kernel, load_factor=0.2):
    return replace(TABLE, compute_kernel=kernel, cache_load_factor=load_factor)


def test_only_the_rank_of_a_table_in_host_memory_pays_and_other_parts_of_the_step_stay():
    _, device = cost_of(TABLE)
    _, managed = cost_of(in_host("fused_uvm"))
    assert not device.host_ms.any()
    assert managed.host_ms[0] > 0
    assert managed.host_ms[1] == 0
    for part in ("forward_compute_ms", "backward_compute_ms", "input_dist_ms", "module_ms"):
        np.testing.assert_array_equal(getattr(device, part), getattr(managed, part))


def test_transfers_take_as_long_as_their_bytes_need_on_the_link():
    """64 GB/s of PCIe 5.0, of which reads reach 72.62 %."""
    task, cost = cost_of(in_host("fused_uvm"))
    expected_ms = host_link_bytes(whole(task.tables[0]), task) / (64e9 * 0.7407) * 1e3
    assert cost.host_ms[0] == pytest.approx(expected_ms)
    _, faster = cost_of(in_host("fused_uvm"), device="gh200")
    assert faster.host_ms[0] == pytest.approx(expected_ms * 64 / 450)


def test_larger_caches_pay_less_and_management_remains():
    costs = [cost_of(in_host("fused_uvm_caching", share))[1].host_ms[0] for share in (0.05, 0.2, 0.5, 1.0)]
    assert costs == sorted(costs, reverse=True)
    assert 0.05 < costs[-1] < 0.5  # 15 kernels that manage the cache; among other things, they sort 164,000 ids
    assert costs[0] < cost_of(in_host("fused_uvm"))[1].host_ms[0]


def test_rows_on_both_ranks_share_the_transfers():
    _, whole_table = cost_of(in_host("fused_uvm"))
    _, cut = cost_of(in_host("fused_uvm"), "row_wise")
    np.testing.assert_allclose(cut.host_ms, whole_table.host_ms[0] / 2, rtol=1e-3)
