"""The GPU memory that a campaign needs, in numbers, without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml
from conftest import ROOT

from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.errors import MeasurementError
from neuroshard_pipeline.measurement.device_memory import (
    CODE_BYTES,
    FLUSH_BYTES,
    memory_need,
    require_memory,
    sample_bytes,
)
from neuroshard_pipeline.tables import compute_samples_from_frame
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table, whole

GIB = 2**30
CARD = 80 * GIB
#: An H100 with "80 GB" reports 79.6 GiB, and 79.1 GiB of them are free before a program uses it.
FREE = round(79.1 * GIB)
WIDE = Table("wide", 1000, 64, 10.0)
SAMPLE = ComputeSample("two shards", 4096, (Shard(WIDE, 0, 16), whole(Table("narrow", 50, 4, 0.5))))


def test_a_sample_needs_its_ids_their_sort_and_its_outputs():
    ids, offsets, outputs = 4096 * 10 + 2048, 2 * 4096 + 1, 4096 * 20
    assert sample_bytes(SAMPLE) == 2 * 8 * (ids + offsets) + 64 * ids + 3 * 4 * outputs


def test_the_output_of_a_table_has_a_row_per_feature_or_per_id():
    sequence = ComputeSample("sequence", 4096, (whole(replace(WIDE, pooling="none")),))
    pooled = ComputeSample("pooled", 4096, (whole(WIDE),))
    of_features = ComputeSample("features", 4096, (whole(replace(WIDE, num_features=3)),))
    assert sample_bytes(of_features) - sample_bytes(pooled) == 3 * 4 * 64 * 2 * 4096 + 2 * 8 * 2 * 4096
    assert sample_bytes(sequence) - sample_bytes(pooled) == 3 * 4 * 64 * (4096 * 10 - 4096)


def test_a_campaign_needs_the_arena_once_and_room_for_its_largest_sample(compute_params):
    params = compute_params(backend="fbgemm_cuda", arena_bytes=2**24)
    small, double = replace(SAMPLE, sample_id="small", batch_size=16), replace(SAMPLE, batch_size=8192)
    huge = ComputeSample("beyond the arena", 2**20, (whole(Table("huge", 2**22, 4, 1.0)),))
    need = memory_need([small, double, SAMPLE, huge], params, CARD)
    assert (need.weights, need.states) == (2**24, 0)
    assert (need.sample, need.sample_id) == (sample_bytes(double), "two shards")
    assert need.total == 2**24 + sample_bytes(double) + 5 * GIB + FLUSH_BYTES + CODE_BYTES
    adagrad = memory_need([replace(small, optimizer="rowwise_adagrad")], params, CARD)
    assert adagrad.states == 2**23


def test_too_little_memory_is_refused_in_bytes_with_an_arena_that_fits(compute_params):
    params = compute_params(backend="fbgemm_cuda", arena_bytes=36 * GIB)
    samples = [replace(SAMPLE, optimizer="rowwise_adagrad")]
    need = memory_need(samples, params, CARD)
    require_memory(need, need.total, "GPU 0 (big)")
    with pytest.raises(MeasurementError) as refused:
        require_memory(need, 40 * GIB, "GPU 0 (small)")
    text = str(refused.value)
    assert f"needs {need.total} bytes of GPU memory, but GPU 0 (small) has {40 * GIB} bytes for it" in text
    fitting = int(re.search(r"Set arena_bytes to at most (\d+)", text)[1])
    require_memory(memory_need(samples, params.model_copy(update={"arena_bytes": fitting}), CARD), 40 * GIB, "it")
    more = params.model_copy(update={"arena_bytes": fitting + 100})
    with pytest.raises(MeasurementError):
        require_memory(memory_need(samples, more, CARD), 40 * GIB, "it")


def test_the_environment_cuda_fits_a_card_of_80_gb(compute_params):
    conf = yaml.safe_load((ROOT / "conf/cuda/parameters.yml").read_text())
    augment, arena_bytes = conf["augment"], conf["measure"]["compute"]["arena_bytes"]
    pool = generate_pool(PoolParams(num_tables=856, batch_size=65536, row_scale=1.0, seed=0))
    drawn = ComputeSampleParams(
        num_samples=1000,
        batch_size=augment["variation"]["extrapolation_batch_size"],
        dimensions=(4, 8, 16, 32, 64, 128),
        min_tables=1,
        max_tables=15,
        memory_bytes=augment["compute_samples"]["memory_bytes"],
        seed=0,
    )
    samples = compute_samples_from_frame(compute_samples(pool, drawn), pool)
    samples = [replace(sample, optimizer="rowwise_adagrad") for sample in samples]
    params = compute_params(backend="fbgemm_cuda", arena_bytes=arena_bytes)
    need = memory_need(samples, params, CARD)
    assert need.weights > augment["compute_samples"]["memory_bytes"]
    require_memory(need, FREE, "an 80 GB card")
    with pytest.raises(MeasurementError, match="Set arena_bytes"):
        require_memory(need, 48 * GIB, "a 48 GB card")
