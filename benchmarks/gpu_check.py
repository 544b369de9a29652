"""Checks in about a minute whether `gpu_campaign.py` can run on this machine's GPU; prints a table with remedies.

    make gpu-check
    PYTHONPATH=src python benchmarks/gpu_check.py            # the same without make

The table has one row per check. `pass` and `FAIL` are verdicts; `-` marks a check without a verdict on this machine.

    kernels         outputs and updates of FBGEMM's fused lookup against torch's embedding bag in float64
    memory          what the campaign would need against what the GPU has free
    largest sample  runs a sample that fills the arena, and compares its peak memory with the predicted one
    copy bandwidth  against the data sheet (lab.devices in conf/base/parameters_lab.yml)
    launch floor    cost of a lookup of a few ids, which consists of kernel launches
    L2 flush        its duration, and its effect on a lookup that fits the L2 cache
    collective      all-to-all between two GPUs: do their clocks agree, and does a late start count in full?
    lab             costs of 30 samples by the lab's formulas for this GPU against measured ones

`gpu_campaign.py` runs these checks first; a failure of the first three ends it. The exit code is 2 after such a
failure, and if nothing can be checked, for example without a CUDA device; 1 after another failure; 0 otherwise.

The script needs the packages of `gpu_campaign.py`, but no Kedro. It has not run on a GPU yet; the tests run
it with CPU kernels (--backend fbgemm_cpu).
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

try:
    import numpy as np
    import torch

    from neuroshard_pipeline.augment import ComputeSampleParams, PoolParams, compute_samples, generate_pool
    from neuroshard_pipeline.errors import NeuroShardError
    from neuroshard_pipeline.lab.device import DeviceParams, lookup_cost_ms, modelled_device
    from neuroshard_pipeline.measurement import CommCampaign, CommMeasureParams, ComputeMeasureParams
    from neuroshard_pipeline.measurement.compute_bench import make_bench
    from neuroshard_pipeline.measurement.cuda import require_devices
    from neuroshard_pipeline.measurement.device_memory import CODE_BYTES, FLUSH_BYTES, memory_need, require_memory
    from neuroshard_pipeline.measurement.lookup_bench import LookupBench
    from neuroshard_pipeline.measurement.preparation import lab_device
    from neuroshard_pipeline.tables import compute_samples_from_frame
    from neuroshard_pipeline.tables.ids import draw_ids
    from neuroshard_pipeline.tables.profile import with_profile
    from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
    from neuroshard_pipeline.tables.table import Shard, Table, whole
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    # Linux has this file as soon as NVIDIA's driver runs.
    device = "" if Path("/dev/nvidiactl").exists() else "no CUDA device on this machine, and "
    print(f"gpu-check: {device}{sys.executable} has no module {missing.name}; nothing was checked", file=sys.stderr)
    sys.exit(2)

_SEED = 0
_LEARNING_RATE = 0.5
#: Largest error of an output or an updated weight of order one; fp16 has eleven significant bits.
_ALLOWED = {"fp32": 1e-3, "fp16": 2e-2}
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_KINDS = list(product(_DTYPES, ("sgd", "rowwise_adagrad")))
#: Share of the data sheet's bandwidth that a copy reaches at least. It is an assumption.
_COPY_SHARE = 0.75
#: Generous limits of the launch floor, ms: FBGEMM's Python code with 1 kernel (forward) or 19 kernels (backward).
_FLOORS_MS = (0.5, 1.5)
#: The aims that the lab has for costs above 50 us: median and 90th percentile of the relative error.
_LAB_AIMS = (0.20, 0.50)
_LAB_SAMPLES = 30
_COPIES = 10
_SKEW_MS = 5.0
_SKEW_TOLERANCE_MS = 0.5


@dataclass(frozen=True)
class Check:
    """One row of the table.

    Attributes:
        name: name of the check.
        passed: the verdict, None if there is none on this machine.
        found: what was found, with numbers.
        remedy: what to do if the check failed.
        vital: whether a campaign is useless if the check failed.
    """

    name: str
    passed: bool | None
    found: str
    remedy: str = ""
    vital: bool = False


class Setup(NamedTuple):
    """What is checked.

    Attributes:
        params: parameters of the campaign that is to follow.
        batch_size: batch size of its samples.
        row_scale: divides the rows of the published pool.
        copy_mib: size of the copies that measure the copy bandwidth.
    """

    params: ComputeMeasureParams
    batch_size: int
    row_scale: float
    copy_mib: int

    @property
    def on_gpu(self) -> bool:
        """Whether the campaign runs on a GPU."""
        return self.params.backend == "fbgemm_cuda"

    @property
    def device(self) -> str:
        """Name of the device for torch."""
        return "cuda" if self.on_gpu else "cpu"

    @property
    def lab_device(self) -> str | None:
        """Name of the GPU in the lab, None if it has none."""
        return lab_device(torch.cuda.get_device_name(0)) if self.on_gpu else None


def main() -> int:
    """Read the command line, run all checks, print the table; returns the exit code."""
    args = _command_line().parse_args()
    params = campaign_params(args.backend, round(args.arena_gib * 2**30))
    try:
        if args.backend == "fbgemm_cuda":
            require_devices(args.backend, 1)
        checks = [*run_checks(Setup(params, args.batch_size, args.row_scale, args.copy_mib), show=True)]
    except NeuroShardError as problem:
        print(f"gpu-check: {problem}; nothing was checked", file=sys.stderr)
        return 2
    failed = [check.name for check in checks if check.passed is False]
    print(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}" if failed else "no check failed")
    if any(check.vital for check in checks if check.passed is False):
        return 2
    return int(bool(failed))


def _command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="fbgemm_cuda", choices=["fbgemm_cuda", "fbgemm_cpu"])
    parser.add_argument("--arena-gib", type=float, default=32.5, help="as in the campaign")
    parser.add_argument("--batch-size", type=int, default=65536, help="as in the campaign")
    parser.add_argument("--row-scale", type=float, default=1.0, help="as in the campaign")
    parser.add_argument("--copy-mib", type=int, default=4096, help="size of the copies that measure the copy bandwidth")
    return parser


def run_checks(setup: Setup, show: bool) -> Iterator[Check]:
    """Run all checks, one after another. A check that raises has failed; the others still run.

    Args:
        setup: what is checked.
        show: print each row of the table as soon as it is known.

    Raises:
        MeasurementError: FBGEMM is missing, or the arena of the smallest check cannot be allocated.
    """
    make_bench(_small(setup.params), _SEED, 0)
    checks: dict[str, Callable[[Setup], Check]] = {
        "kernels": check_kernels,
        "memory": check_memory,
        "largest sample": check_largest_sample,
        "copy bandwidth": check_copy,
        "launch floor": check_launch_floor,
        "L2 flush": check_flush,
        "collective": check_collective,
        "lab": check_lab,
    }
    for name, function in checks.items():
        started = time.monotonic()
        try:
            check = function(setup)
        except (RuntimeError, MemoryError, NeuroShardError) as problem:
            text = f"{type(problem).__name__}: {problem}".splitlines()[0]
            check = Check(name, False, text, "see the error", vital=name in ("kernels", "memory", "largest sample"))
        finally:
            _free()
        if show:
            verdict = {True: "pass", False: "FAIL", None: "-"}[check.passed]
            print(f"{verdict:<5}{check.name:<16}{time.monotonic() - started:5.1f} s  {check.found}", flush=True)
            if check.passed is False:
                print(f"{'':28}remedy: {check.remedy}", flush=True)
        yield check


def campaign_params(backend: str, arena_bytes: int) -> ComputeMeasureParams:
    """The protocol of the checks: that of `gpu_campaign.py`, with one visit."""
    return ComputeMeasureParams(
        backend=backend,
        engine="local",
        cluster_address=None,
        visits=1,
        warmup_iterations=1,
        iterations=5,
        iteration_statistic="median",
        visit_statistic="median",
        cache_treatment="cold_rows",
        shuffle="samples",
        workers=1,
        threads=1,
        arena_bytes=arena_bytes,
        thorough_lookup_bytes=None,
        least_visits=1,
        ids_folder=None,
        chunk_samples=100,
        noise_floor_share=0.0,
        time_budget_s=None,
        timeout_s=600.0,
    )


def check_kernels(setup: Setup) -> Check:
    """Compare outputs and updates of small lookups with torch's embedding bag in float64 on the CPU."""
    wide, narrow = Table("check-wide", 1000, 128, 9.0), Table("check-narrow", 70, 4, 0.7)
    shards = (whole(wide), whole(narrow), Shard(wide, 8, 12))
    worst = {}
    for data_type, optimizer in _KINDS:
        stored = tuple(replace(shard, table=replace(shard.table, data_type=data_type)) for shard in shards)
        sample = ComputeSample("check", 64, stored, optimizer)
        worst[data_type, optimizer] = kernel_error(setup, sample)
    wrong = [kind for kind, error in worst.items() if not error < _ALLOWED[kind[0]]]
    found = ", ".join(f"{data_type} {optimizer} {error:.1g}" for (data_type, optimizer), error in worst.items())
    remedy = (
        f"check that the versions of torch ({torch.__version__}) and fbgemm_gpu belong together and support this GPU; "
        "torch 2.13 goes with fbgemm_gpu 1.8"
    )
    return Check("kernels", not wrong, f"largest error: {found}", remedy, vital=True)


def kernel_error(setup: Setup, sample: ComputeSample) -> float:
    """Largest difference between FBGEMM and float64, over outputs and updated weights of order one."""
    dtype = _DTYPES[sample.shards[0].table.data_type]
    generator = torch.Generator().manual_seed(_SEED)
    weights = [
        torch.randn(shard.table.num_embeddings, shard.embedding_dim, generator=generator).to(dtype)
        for shard in sample.shards
    ]
    bench = make_bench(_small(setup.params), _SEED, 0)
    bench.learning_rate = _LEARNING_RATE / 100  # up to a hundred ids of this batch are the same row
    output, updated = bench.run_once(sample, [weight.to(setup.device) for weight in weights])
    expected_output, expected_weights = reference(sample, weights, bench.learning_rate)
    errors = [(output.cpu().double() - expected_output).abs().max()]
    errors += [(new.cpu().double() - want).abs().max() for new, want in zip(updated, expected_weights, strict=True)]
    if all(torch.equal(new.cpu(), old) for new, old in zip(updated, weights, strict=True)):
        return float("inf")  # nothing was updated
    return float(torch.stack(errors).max())


def reference(
    sample: ComputeSample, weights: list[torch.Tensor], learning_rate: float
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Output and updated weights in float64, by torch's embedding bag and the formulas of the optimizers."""
    outputs, updated = [], []
    for shard, weight in zip(sample.shards, weights, strict=True):
        ids = draw_ids(with_profile(shard.table, sample.batch_size), sample.batch_size, _SEED)
        indices, offsets = torch.from_numpy(ids.indices), torch.from_numpy(ids.offsets)
        double = weight.double().requires_grad_()
        bag = torch.nn.functional.embedding_bag
        output = bag(indices, double, offsets, mode="sum", include_last_offset=True)
        output.sum().backward()
        assert double.grad is not None
        step = double.grad
        if sample.optimizer == "rowwise_adagrad":
            step = step / (step.square().mean(dim=1, keepdim=True).sqrt() + 1e-8)
        outputs.append(output.detach())
        updated.append((double - learning_rate * step).detach())
    return torch.cat(outputs, dim=1), updated


def check_memory(setup: Setup) -> Check:
    """Compare the memory that the campaign needs with what is free."""
    sample = largest_sample(setup)
    if not setup.on_gpu:
        return Check("memory", None, "no GPU memory is needed", vital=True)
    free_bytes, device_bytes = torch.cuda.mem_get_info(0)
    need = memory_need([sample], setup.params, device_bytes)
    found = f"needs {need.total / 2**30:.1f} GiB, free {free_bytes / 2**30:.1f} of {device_bytes / 2**30:.1f} GiB"
    try:
        require_memory(need, free_bytes, torch.cuda.get_device_name(0))
    except NeuroShardError as problem:
        return Check("memory", False, found, str(problem), vital=True)
    return Check("memory", True, found, vital=True)


def largest_sample(setup: Setup) -> ComputeSample:
    """A sample that fills nine tenths of the arena, with more ids than nearly all drawn samples have.

    It looks up one table twelve times, so that its ids are drawn once.
    """
    shards, width = 12, 16
    rows = int(0.9 * setup.params.arena_bytes / (shards * width * 4))
    table = Table("largest", rows, width, 60.0)
    return ComputeSample("largest", setup.batch_size, (whole(table),) * shards, "rowwise_adagrad")


def check_largest_sample(setup: Setup) -> Check:
    """Run the largest sample and compare its peak memory with the prediction."""
    sample = largest_sample(setup)
    bench = make_bench(setup.params, _SEED, 0)
    if setup.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    (timing,) = bench.measure([sample])
    remedy = "lower --arena-gib (measure.compute.arena_bytes), or use a GPU with more memory"
    if timing.error:
        return Check("largest sample", False, timing.error, remedy, vital=True)
    found = f"forward {timing.forward_ms:.3g} ms, backward {timing.backward_ms:.3g} ms"
    if not setup.on_gpu:
        return Check("largest sample", True, found, vital=True)
    peak = torch.cuda.max_memory_allocated()
    need = memory_need([sample], setup.params, torch.cuda.mem_get_info(0)[1])
    predicted = need.total - need.kept_ids - CODE_BYTES
    found += f", peak {peak / 2**30:.1f} GiB (predicted: at most {predicted / 2**30:.1f})"
    remedy = "the numbers in measurement/device_memory.py are too small for this version of FBGEMM; raise them"
    return Check("largest sample", peak <= predicted, found, remedy, vital=True)


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
    """Measure a lookup of a few ids, which takes as long as its launches."""
    sample = ComputeSample("floor", 16, (whole(Table("floor", 100, 64, 1.0)),))
    bench = make_bench(_small(setup.params, cache_treatment="warm", iterations=50), _SEED, 0)
    (timing,) = bench.measure([sample])
    found = f"forward {timing.forward_ms * 1e3:.0f} us, backward {timing.backward_ms * 1e3:.0f} us"
    if setup.lab_device:
        kernels = modelled_device(setup.lab_device).kernels
        found += f" (kernels alone, lab: {kernels.forward_launch_us:.0f} and {kernels.backward_launch_us:.0f} us)"
    remedy = (
        "the host launches kernels slowly: end other programs on its cores, and set its CPU governor to performance"
    )
    passed = timing.forward_ms <= _FLOORS_MS[0] and timing.backward_ms <= _FLOORS_MS[1]
    return Check("launch floor", passed, found, remedy)


def check_flush(setup: Setup) -> Check:
    """Measure the L2 flush, and a lookup after it, after a flush that leaves dirty lines, and without any."""
    if not setup.on_gpu:
        return Check("L2 flush", None, "the CPU bench moves the weights instead")
    sample = ComputeSample("cached", setup.batch_size, (whole(Table("cached", 20_000, 64, 20.0)),))
    costs = {}
    for treatment in ("cold_rows", "warm"):
        bench = make_bench(_small(setup.params, cache_treatment=treatment, iterations=20), _SEED, 0)
        (timing,) = bench.measure([sample])
        costs[treatment] = timing.forward_ms
    data = torch.zeros(FLUSH_BYTES // 4, device="cuda")
    flush_ms = 1e3 * min(_seconds(lambda: torch.sum(data), "cuda") for _ in range(_COPIES))
    written_ms = _after_write_ms(bench, sample, data)
    found = (
        f"takes {flush_ms:.2f} ms; forward {costs['cold_rows']:.3f} ms after it, {costs['warm']:.3f} ms without, "
        f"{written_ms:.3f} ms after a flush that writes"
    )
    remedy = "the flush has no effect: raise FLUSH_BYTES in measurement/device_memory.py"
    return Check("L2 flush", costs["cold_rows"] > costs["warm"], found, remedy)


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
    """Time an all-to-all of two ranks, of which one starts late."""
    if not setup.on_gpu or torch.cuda.device_count() < 2:
        return Check("collective", None, "needs two GPUs; collectives can be modelled (backend topology)")
    params = CommMeasureParams(
        backend="nccl", local_world_size=None, torchrun_endpoint=None, visits=1, warmup_iterations=2, iterations=9,
        iteration_statistic="median", visit_statistic="median", shuffle="samples", threads=1, buffer_bytes=2**26,
        start_margin_ms=1.0, chunk_samples=10, reduction_visits=1, reduction_statistic="mean",
        noise_floor_share=0.0, time_budget_s=None, timeout_s=120.0,
    )  # fmt: skip
    even = CommSample("even", 8192, (128, 128), (0.0, 0.0))
    costs = CommCampaign(params, _SEED).measure([even, replace(even, sample_id="late", start_skew_ms=(0.0, _SKEW_MS))])
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
    """Compare modelled with measured costs of samples of the published pool."""
    if setup.lab_device is None:
        return Check("lab", None, "lab.devices has no data sheet for this device")
    samples = lab_samples(setup)
    timings = make_bench(setup.params, _SEED, 0).measure(samples)
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
    pool_params = PoolParams(num_tables=60, batch_size=setup.batch_size, row_scale=setup.row_scale, seed=_SEED)
    pool = generate_pool(pool_params)
    drawn = ComputeSampleParams(
        num_samples=_LAB_SAMPLES,
        batch_size=setup.batch_size,
        dimensions=(4, 8, 16, 32, 64, 128),
        min_tables=1,
        max_tables=4,
        memory_bytes=round(0.9 * setup.params.arena_bytes),
        seed=_SEED,
    )
    return compute_samples_from_frame(compute_samples(pool, drawn), pool)


def _data_sheet(setup: Setup) -> DeviceParams | None:
    return modelled_device(setup.lab_device).device if setup.lab_device else None


def _small(params: ComputeMeasureParams, **changes: Any) -> ComputeMeasureParams:
    """The same parameters with a small arena, in which the weights of small samples can still change their place."""
    return params.model_copy(update={"arena_bytes": min(params.arena_bytes, 2**25), **changes})


def _seconds(function: Callable[[], object], device: str) -> float:
    _synchronise(device)
    start = time.perf_counter()
    function()
    _synchronise(device)
    return time.perf_counter() - start


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _free() -> None:
    """Give back the memory of a finished check. After a CUDA error, this fails, too; the failure is ignored."""
    gc.collect()
    if torch.cuda.is_available():
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
