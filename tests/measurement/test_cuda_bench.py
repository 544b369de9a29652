from __future__ import annotations

import pytest
import torch

from measurement.lookup_reference import SAMPLES, SEED, random_weights, reference, stored_as
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement import CommCampaign, ComputeCampaign, lookup_bench
from neuroshard_pipeline.measurement.cuda_bench import FbgemmCudaBench
from neuroshard_pipeline.measurement.hardware import fingerprint
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Table, whole

HAS_CUDA = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not HAS_CUDA, reason="no CUDA device")
without_gpu = pytest.mark.skipif(HAS_CUDA, reason="there is a CUDA device")


@without_gpu
def test_without_a_device_the_alternatives_are_named(compute_params, compute_samples, comm_params, comm_samples):
    with pytest.raises(MeasurementError, match="no CUDA device; use fbgemm_cpu, recorded or modelled"):
        ComputeCampaign(compute_params(backend="fbgemm_cuda"), SEED).measure(compute_samples(1))
    with pytest.raises(MeasurementError, match="no CUDA device; use gloo or topology"):
        CommCampaign(comm_params(backend="nccl"), SEED).measure(comm_samples(1))


@without_gpu
def test_the_bench_itself_refuses_too(compute_params):
    with pytest.raises(MeasurementError, match="no CUDA device"):
        FbgemmCudaBench(compute_params(backend="fbgemm_cuda"), SEED, 0)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.sample_id)
def test_lookup_and_update_agree_with_embedding_bag(compute_params, monkeypatch, sample, optimizer):
    monkeypatch.setattr(lookup_bench, "LEARNING_RATE", 0.5)
    bench = FbgemmCudaBench(compute_params(backend="fbgemm_cuda"), SEED, 0)
    sample = stored_as(sample, optimizer, "fp32")
    weights = random_weights(sample)
    output, updated = bench.run_once(sample, [weight.cuda() for weight in weights])
    expected_output, expected_weights = reference(sample, weights)
    torch.testing.assert_close(output.cpu().double(), expected_output, rtol=1e-4, atol=1e-4)
    for got, expected in zip(updated, expected_weights, strict=True):
        torch.testing.assert_close(got.cpu().double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("treatment", ["cold_rows", "warm"])
@pytest.mark.parametrize("data_type", ["fp32", "fp16"])
def test_every_sample_gets_a_timing(compute_params, treatment, data_type):
    params = compute_params(backend="fbgemm_cuda", cache_treatment=treatment, iterations=3)
    tables = [Table(f"t{index}", 500, 8 * (1 + index), 3.0, data_type=data_type) for index in range(4)]
    samples = [ComputeSample(table.name, 64, (whole(table),), "rowwise_adagrad") for table in tables]
    for timing in FbgemmCudaBench(params, SEED, 0).measure(samples * 2):
        assert timing.error is None
        assert timing.forward_ms > 0
        assert timing.backward_ms > 0


@pytest.mark.gpu
@needs_gpu
def test_a_whole_campaign_runs_on_the_device(compute_params, compute_samples):
    frame = ComputeCampaign(compute_params(backend="fbgemm_cuda"), SEED).measure(compute_samples(6))
    assert frame["error"].isna().all()
    assert fingerprint("fbgemm_cuda")["device"] == "cuda"


@pytest.mark.gpu
@needs_gpu
def test_more_workers_or_ranks_than_devices_are_refused(compute_params, compute_samples, comm_params):
    many = torch.cuda.device_count() + 1
    with pytest.raises(MeasurementError, match=f"{many} CUDA devices"):
        ComputeCampaign(compute_params(backend="fbgemm_cuda", workers=many), SEED).measure(compute_samples(1))
    sample = CommSample("comm", 8, (4,) * many, (0.0,) * many)
    with pytest.raises(MeasurementError, match=f"{many} CUDA devices"):
        CommCampaign(comm_params(backend="nccl"), SEED).measure([sample])


@pytest.mark.gpu
@needs_gpu
def test_nccl_measures_as_many_ranks_as_there_are_devices(comm_params):
    ranks = torch.cuda.device_count()
    sample = CommSample("comm", 64, (8,) * ranks, (0.0,) * ranks)
    frame = CommCampaign(comm_params(backend="nccl", timeout_s=120.0), SEED).measure([sample])
    assert frame["error"].isna().all()
    assert (frame["forward_ms"] > 0).all()


@pytest.mark.gpu
@needs_gpu
def test_memory_does_not_grow_with_the_visits_and_holds_the_weights_once(compute_params):
    params = compute_params(backend="fbgemm_cuda", arena_bytes=2**28)
    tables = [Table(f"t{index}", 50_000 + index, 64, 8.0) for index in range(10)]
    samples = [ComputeSample(table.name, 4096, (whole(table),), "rowwise_adagrad") for table in tables]
    bench = FbgemmCudaBench(params, SEED, 0)
    bench.measure(samples)
    after_one = torch.cuda.memory_allocated()
    bench.measure(samples)
    assert torch.cuda.memory_allocated() == after_one
