"""These checks of `gpu_check.py` time the GPU, and compare times with its data sheet, limits, the lab or each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from gpu_check_setup import SEED, Check, Setup, small

from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples
from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.lab.device import DeviceParams, lookup_cost_ms, modelled_device
from neuroshard_pipeline.measurement import CommCampaign, CommMeasureParams
from neuroshard_pipeline.measurement.compute_bench import make_bench
from neuroshard_pipeline.measurement.cuda_bench import FLUSH_BYTES
from neuroshard_pipeline.measurement.lookup_bench import LookupBench
from neuroshard_pipeline.tables.frames import compute_samples_from_frame
from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Table, whole

#: Share of the data sheet's bandwidth that a copy reaches at least. It is an assumption.
_COPY_SHARE = 0.75
#: Generous limits of the host's calls in us, forward and backward: FBGEMM's Python code launches 1 and 19 kernels.
_FLOORS_US = (500, 1500)
_CALLS = 50
#: The aims that the lab has for costs above 50 us: median and 90th percentile of the relative error.
_LAB_AIMS = (0.20, 0.50)
_LAB_SAMPLES = 30
_COPIES = 10
_SKEW_MS = 5.0
_SKEW_TOLERANCE_MS = 0.5


def check_copy(setup: Setup) -> Check:
    """Compare the bandwidth of a copy with the data sheet."""
    measured = copy_gb_per_s(setup.device, setup.copy_mib)
    sheet = _data_sheet(setup)
    if sheet is None:
        return Check("copy bandwidth", None, f"{measured:.0f} GB/s; lab.devices has no data sheet for this device")
    share = measured / sheet.hbm_gb_per_s
    found = f"{measured:.0f} GB/s, {share:.2f} of the {sheet.hbm_gb_per_s:.0f} GB/s of {setup.lab_device}"
    remedy = (
        f"below {_COPY_SHARE:g}: end other programs on the GPU, and check MIG, power limit and clocks with "
        "nvidia-smi -q; or add this card to lab.devices in conf/base/parameters_lab.yml if it is another variant"
    )
    return Check("copy bandwidth", _COPY_SHARE <= share <= 1.05, found, remedy)


def copy_gb_per_s(device: str, mebibytes: int) -> float:
    """Bandwidth of the fastest of several copies on the device: bytes read + bytes written, in 1e9 bytes per second."""
    source = torch.ones(mebibytes * 2**18, device=device)
    target = torch.empty_like(source)
    seconds = min(_seconds(lambda: target.copy_(source), device) for _ in range(_COPIES))
    return 2 * 4 * source.numel() / seconds / 1e9


def check_launch_floor(setup: Setup) -> Check:
    """Measure the kernels of a lookup of a few ids, and the host's calls that launch them."""
    sample = ComputeSample("floor", 16, (whole(Table("floor", 100, 64, 1.0)),))
    bench = make_bench(small(setup.params, cache_treatment="warm", iterations=50), SEED, 0)
    (timing,) = bench.measure([sample])
    forward_us, backward_us = _host_us(bench, sample, setup.device)
    found = f"host {forward_us:.0f} and {backward_us:.0f} us, forward and backward"
    found += f"; kernels {timing.forward_ms * 1e3:.0f} and {timing.backward_ms * 1e3:.0f} us"
    if setup.lab_device:
        kernels = modelled_device(setup.lab_device).kernels
        found += f" (lab: {kernels.forward_launch_us:.0f} and {kernels.backward_launch_us:.0f})"
    remedy = (
        "the host launches kernels slowly: end other programs on its cores, and set its CPU governor to performance"
    )
    return Check("launch floor", forward_us <= _FLOORS_US[0] and backward_us <= _FLOORS_US[1], found, remedy)


def _host_us(bench: LookupBench, sample: ComputeSample, device: str) -> tuple[float, float]:
    """Time of the host's calls of a forward and of a backward pass, median in us."""
    operator, (ids, offsets) = bench._operator(sample), bench._inputs(sample)
    calls = []
    for _ in range(_CALLS):
        _synchronise(device)
        start = time.perf_counter()
        output = operator(ids, offsets)
        middle = time.perf_counter()
        gradient = bench._gradient(output.shape)
        _synchronise(device)
        resumed = time.perf_counter()
        output.backward(gradient)
        calls.append((middle - start, time.perf_counter() - resumed))
    operator.release()
    forward_s, backward_s = np.median(calls, axis=0)
    return 1e6 * float(forward_s), 1e6 * float(backward_s)


def check_flush(setup: Setup) -> Check:
    """Measure the L2 flush, and a lookup after it, after a flush that leaves dirty lines, and without any."""
    if not setup.on_gpu:
        return Check("L2 flush", None, "the CPU bench moves the weights instead")
    sample = ComputeSample("cached", setup.batch_size, (whole(Table("cached", 20_000, 64, 20.0)),))
    costs = {}
    for treatment in ("cold_rows", "warm"):
        bench = make_bench(small(setup.params, cache_treatment=treatment, iterations=20), SEED, 0)
        (timing,) = bench.measure([sample])
        costs[treatment] = timing.forward_ms
    data = torch.zeros(FLUSH_BYTES // 4, device="cuda")
    flush_ms = 1e3 * min(_seconds(lambda: torch.sum(data), "cuda") for _ in range(_COPIES))
    written_ms = _after_write_ms(bench, sample, data)
    found = (
        f"takes {flush_ms:.2f} ms; forward {costs['cold_rows']:.3f} ms after it, {costs['warm']:.3f} ms without, "
        f"{written_ms:.3f} ms after a flush that writes"
    )
    return Check("L2 flush", None, found)


def _after_write_ms(bench: LookupBench, sample: ComputeSample, data: torch.Tensor) -> float:
    """Forward cost of a lookup after the L2 cache was filled by writing, which leaves lines to write back."""
    operator, (ids, offsets) = bench._operator(sample), bench._inputs(sample)
    costs = []
    for _ in range(_COPIES):
        data.zero_()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        operator(ids, offsets)
        end.record()
        torch.cuda.synchronize()
        costs.append(begin.elapsed_time(end))
    operator.release()
    return float(np.median(costs))


def check_collective(setup: Setup) -> Check:
    """Time an all-to-all of two ranks twice: both ranks start together, and one rank starts late."""
    if not setup.on_gpu or torch.cuda.device_count() < 2:
        return Check("collective", None, "needs two GPUs; collectives can be modelled (backend topology)")
    params = CommMeasureParams(
        backend="nccl", local_world_size=None, torchrun_endpoint=None, visits=1, warmup_iterations=2, iterations=9,
        iteration_statistic="median", visit_statistic="median", shuffle="samples", threads=1, buffer_bytes=2**26,
        start_margin_ms=1.0, chunk_samples=10, reduction_visits=1, reduction_statistic="mean",
        noise_floor_share=0.0, time_budget_s=None, timeout_s=120.0,
    )  # fmt: skip
    even = CommSample("even", 8192, (128, 128), (0.0, 0.0))
    costs = CommCampaign(params, SEED).measure([even, replace(even, sample_id="late", start_skew_ms=(0.0, _SKEW_MS))])
    known = costs.set_index(["sample_id", "rank"])["forward_ms"]
    if costs["error"].notna().any():
        return Check("collective", False, str(costs["error"].dropna().iloc[0]), "set NCCL_DEBUG=INFO and read its log")
    apart = abs(known["even", 0] - known["even", 1])
    waited = known["late", 0] - known["late", 1]
    found = f"{known['even', 0]:.3f} ms; ranks {apart:.3f} ms apart; a start {_SKEW_MS:g} ms late adds {waited:.2f} ms"
    remedy = (
        "the ranks do not start as asked: end other programs on this host's cores, and check that its GPUs have fixed "
        "clocks"
    )
    return Check(
        "collective", apart < _SKEW_TOLERANCE_MS and abs(waited - _SKEW_MS) < _SKEW_TOLERANCE_MS, found, remedy
    )


def check_lab(setup: Setup) -> Check:
    """Compare modelled with measured costs of samples whose tables have the published statistics."""
    if setup.lab_device is None:
        return Check("lab", None, "lab.devices has no data sheet for this device")
    samples = lab_samples(setup)
    timings = make_bench(setup.params, SEED, 0).measure(samples)
    gpu = modelled_device(setup.lab_device)
    errors = []
    for sample, timing in zip(samples, timings, strict=True):
        if timing.error is None:
            modelled_ms = sum(lookup_cost_ms(sample.shards, sample.batch_size, sample.optimizer, gpu))
            errors.append(modelled_ms / (timing.forward_ms + timing.backward_ms) - 1.0)
    if not errors:
        return Check("lab", False, f"no sample was measured: {timings[0].error}", "see the error")
    median, most = np.quantile(np.abs(errors), [0.5, 0.9])
    found = (
        f"{len(errors)} samples: relative error {median:.2f} (median), {most:.2f} (90th percentile), "
        f"lab / measured {1 + float(np.median(errors)):.2f}"
    )
    remedy = "plan with measured costs of this GPU (make gpu-campaign) rather than with those of the lab"
    return Check("lab", bool(median <= _LAB_AIMS[0] and most <= _LAB_AIMS[1]), found, remedy)


def lab_samples(setup: Setup) -> list[ComputeSample]:
    """Samples of few tables, so that their ids are drawn within seconds."""
    pool_params = PoolParams(num_tables=60, batch_size=setup.batch_size, row_scale=setup.row_scale, seed=SEED)
    pool = generate_pool(pool_params)
    drawn = ComputeSampleParams(
        num_samples=_LAB_SAMPLES,
        batch_size=setup.batch_size,
        dimensions=(4, 8, 16, 32, 64, 128),
        min_tables=1,
        max_tables=4,
        memory_bytes=round(0.9 * setup.params.arena_bytes),
        seed=SEED,
    )
    return compute_samples_from_frame(compute_samples(pool, drawn), pool)


def _data_sheet(setup: Setup) -> DeviceParams | None:
    return modelled_device(setup.lab_device).device if setup.lab_device else None


def _seconds(function: Callable[[], object], device: str) -> float:
    _synchronise(device)
    start = time.perf_counter()
    function()
    _synchronise(device)
    return time.perf_counter() - start


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
