from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from measurement.lookup_reference import SAMPLES, SEED, WIDE, random_weights, reference, stored_as
from neuroshard_pipeline.measurement import id_files, lookup_bench
from neuroshard_pipeline.measurement.compute_bench import FbgemmCpuBench
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import with_profile
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


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_sequence_tables_are_looked_up_row_by_row(compute_params, monkeypatch, optimizer):
    """One output row per id, in the order of tables and ids; with gradients of 1, the update is as for sums of rows."""
    monkeypatch.setattr(lookup_bench, "LEARNING_RATE", 0.5)
    tables = [Table("a", 1000, 8, 0.4, pooling="none"), Table("b", 30, 8, 9.0, pooling="none")]
    sample = ComputeSample("sequences", 33, tuple(map(whole, tables)), optimizer)
    weights = random_weights(sample)
    output, updated = FbgemmCpuBench(compute_params(), SEED).run_once(sample, weights)
    ids = [draw_ids(with_profile(table, 33), 33, SEED).indices for table in tables]
    rows = [weight[torch.from_numpy(of)] for weight, of in zip(weights, ids, strict=True)]
    torch.testing.assert_close(output, torch.cat(rows))
    for got, expected in zip(updated, reference(sample, weights)[1], strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_a_table_of_several_features_has_a_pooled_row_for_each(compute_params, monkeypatch, optimizer):
    """The ids of every sample are divided among the features."""
    monkeypatch.setattr(lookup_bench, "LEARNING_RATE", 0.5)
    tables = [Table("a", 1000, 8, 6.0, num_features=3), Table("b", 30, 16, 9.0)]
    sample = ComputeSample("features", 33, tuple(map(whole, tables)), optimizer)
    weights = random_weights(sample)
    output, updated = FbgemmCpuBench(compute_params(), SEED).run_once(sample, weights)
    assert output.shape == (33, 3 * 8 + 16)
    ids = draw_ids(with_profile(tables[0], 33), 33, SEED)
    total, numbers = 0, []
    for feature in range(3):
        own = [(count + 2 - feature) // 3 for count in np.diff(ids.offsets)]
        bags = torch.from_numpy(ids.indices[total : total + sum(own)]), torch.tensor([0, *np.cumsum(own)[:-1]])
        expected = torch.nn.functional.embedding_bag(bags[0].long(), weights[0], bags[1], mode="sum")
        torch.testing.assert_close(output[:, 8 * feature : 8 * feature + 8], expected, rtol=1e-4, atol=1e-4)
        total, numbers = total + sum(own), [*numbers, own]
    assert np.sum(numbers, axis=0).tolist() == np.diff(ids.offsets).tolist()
    for got, expected in zip(updated, reference(sample, weights)[1], strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)


def test_sums_and_sequences_are_not_mixed_in_one_kernel(compute_params):
    mixed = ComputeSample("mixed", 8, (whole(WIDE), whole(Table("b", 30, 16, 9.0, pooling="none"))))
    (timing,) = FbgemmCpuBench(compute_params(), SEED).measure([mixed])
    assert "cannot mix tables with pooling none" in timing.error
    assert timing.permanent


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

    monkeypatch.setattr(id_files, "draw_ids", counting)
    bench = FbgemmCpuBench(compute_params(), SEED)
    narrow = Table("wide", 60, 4, 5.0)
    bench.measure([ComputeSample("x", 16, (whole(WIDE), whole(narrow))), ComputeSample("y", 16, (Shard(WIDE, 4, 8),))])
    assert drawn.count(("wide", 16)) == 1


def test_after_a_visit_nothing_keeps_the_joined_ids_of_the_sample(compute_params, monkeypatch):
    kept = []
    inputs = FbgemmCpuBench._inputs

    def watched(bench, sample):
        tensors = inputs(bench, sample)
        kept.extend(weakref.ref(tensor) for tensor in tensors)
        return tensors

    monkeypatch.setattr(FbgemmCpuBench, "_inputs", watched)
    bench = FbgemmCpuBench(compute_params(iterations=2), SEED)
    timings = bench.measure([stored_as(sample, "rowwise_adagrad", "fp32") for sample in SAMPLES])
    assert [timing.error for timing in timings] == [None] * len(SAMPLES)
    assert len(bench._operators) > len(SAMPLES)  # one more operator warms up the core
    assert len(kept) >= 2 * len(SAMPLES)
    assert not [reference for reference in kept if reference() is not None]


class AllocatedNumbers(TorchDispatchMode):
    """Counts the numbers in all tensors that operations return."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.total += result.numel() if isinstance(result, torch.Tensor) else 0
        return result


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_an_operator_allocates_no_weights_of_its_own(optimizer, kind):
    # FBGEMM's constructor for CUDA works with tensors of any device, so that this test needs no GPU.
    fbgemm = lookup_bench._fbgemm("fbgemm_cpu")
    location = fbgemm.EmbeddingLocation.HOST if kind == "cpu" else fbgemm.EmbeddingLocation.DEVICE
    device = fbgemm.ComputeDevice.CPU if kind == "cpu" else fbgemm.ComputeDevice.CUDA
    shapes = [(50_000, 64), (70_000, 32)]

    def numbers(module):
        with AllocatedNumbers() as allocated:
            module(
                [(*shape, location, device) for shape in shapes],
                optimizer=fbgemm.OPTIMIZERS[optimizer],
                device=torch.device("cpu"),
            )
        return allocated.total

    weights = sum(rows * width for rows, width in shapes)
    assert numbers(fbgemm.FusedLookup.__base__) >= weights
    assert numbers(fbgemm.FusedLookup) < 1000
