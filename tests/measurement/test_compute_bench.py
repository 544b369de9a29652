from __future__ import annotations

import numpy as np
import pytest
import torch

from measurement.lookup_reference import SAMPLES, SEED, WIDE, random_weights, reference, stored_as
from neuroshard_pipeline.measurement import lookup_bench
from neuroshard_pipeline.measurement.compute_bench import FbgemmCpuBench
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table, whole

TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16}
#: Tolerances for updated weights of order one. fp16 has eleven significant bits, and every update is rounded to them.
ALLOWED = {"fp32": 1e-4, "fp16": 4e-3}


@pytest.mark.parametrize("data_type", ["fp32", "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.sample_id)
def test_lookup_and_update_agree_with_embedding_bag(compute_params, monkeypatch, sample, optimizer, data_type):
    monkeypatch.setattr(lookup_bench, "LEARNING_RATE", 0.5)  # large enough to change the weights in float32
    bench = FbgemmCpuBench(compute_params(), SEED)
    sample = stored_as(sample, optimizer, data_type)
    weights = [weight.to(TORCH_TYPES[data_type]) for weight in random_weights(sample)]
    output, updated = bench.run_once(sample, weights)
    expected_output, expected_weights = reference(sample, weights)
    allowed = ALLOWED[data_type]
    torch.testing.assert_close(output.double(), expected_output, rtol=1e-4, atol=1e-4)
    for got, expected, before in zip(updated, expected_weights, weights, strict=True):
        assert got.dtype == before.dtype
        torch.testing.assert_close(got.double(), expected, rtol=allowed, atol=allowed)
        assert not torch.equal(got, before)


@pytest.mark.parametrize("treatment", ["cold_rows", "warm"])
def test_every_sample_gets_a_timing_whatever_ran_before(compute_params, treatment):
    bench = FbgemmCpuBench(compute_params(cache_treatment=treatment, iterations=3), SEED)
    kinds = [(optimizer, data_type) for optimizer in ("sgd", "rowwise_adagrad") for data_type in ("fp32", "fp16")]
    samples = [stored_as(sample, *kind) for kind in kinds for sample in SAMPLES]
    timings = bench.measure(samples * 2)
    assert len(timings) == 2 * len(samples)
    for timing in timings:
        assert timing.error is None
        assert timing.forward_ms > 0
        assert timing.backward_ms > 0
        assert timing.seconds * 1e3 >= 3 * timing.forward_ms


def test_cold_rows_move_through_the_arena_and_stay_inside(compute_params):
    bench = FbgemmCpuBench(compute_params(iterations=50), SEED)
    big = ComputeSample("big", 4, (whole(Table("big", 2**16, 4, 1.0)),), "rowwise_adagrad")  # a quarter of the arena
    starts = set()
    place = bench._place

    def spy(operator, sample, at):
        place(operator, sample, at)
        if sample is not big:
            return
        starts.add(operator.weights_host.data.storage_offset())
        assert operator.weights_host.data.numel() == 2**18
        assert operator.momentum1_host.data.numel() == 2**16

    bench._place = spy
    assert [timing.error for timing in bench.measure([big])] == [None]
    assert len(starts) >= 3


def test_what_does_not_fit_the_arena_is_a_row_with_an_error(compute_params):
    bench = FbgemmCpuBench(compute_params(), SEED)
    huge = ComputeSample("huge", 4, (whole(Table("huge", 2**20, 8, 1.0)),))
    timings = bench.measure([SAMPLES[0], huge, SAMPLES[1]])
    assert [timing.error is None for timing in timings] == [True, False, True]
    assert f"{2**25} bytes" in timings[1].error
    assert np.isnan(timings[1].forward_ms)


def test_what_the_kernels_cannot_do_is_a_row_with_an_error(compute_params):
    tables = [Table("half", 10, 8, 1.0, data_type="fp16"), Table("single", 10, 8, 1.0)]
    mixed = ComputeSample("mixed", 4, tuple(whole(table) for table in tables))
    adam = ComputeSample("adam", 4, (whole(tables[1]),), "adam")
    both, unknown = FbgemmCpuBench(compute_params(), SEED).measure([mixed, adam])
    assert "fp16 and fp32" in both.error
    assert "optimizer adam cannot be measured; use sgd or rowwise_adagrad" in unknown.error


def test_ids_are_drawn_once_per_table_whatever_its_width(compute_params, monkeypatch):
    drawn = []

    def counting(table, batch_size, seed):
        drawn.append((table.name, batch_size))
        return draw_ids(table, batch_size, seed)

    monkeypatch.setattr(lookup_bench, "draw_ids", counting)
    bench = FbgemmCpuBench(compute_params(), SEED)
    narrow = Table("wide", 60, 4, 5.0)
    bench.measure([ComputeSample("x", 16, (whole(WIDE), whole(narrow))), ComputeSample("y", 16, (Shard(WIDE, 4, 8),))])
    assert drawn.count(("wide", 16)) == 1
