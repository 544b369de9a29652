"""The vital checks of `gpu_check.py`: if one of them fails, a campaign is useless.

They compare kernels with float64, and run the largest sample that a campaign may draw.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch
from gpu_check_setup import SEED, Check, Setup, small

from neuroshard_pipeline.measurement.compute_bench import make_bench
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table, whole

_LEARNING_RATE = 0.5
#: Largest allowed error of an output or an updated weight of order one; fp16 has eleven significant bits.
_ALLOWED = {"fp32": 1e-3, "fp16": 2e-2}
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_KINDS = list(product(_DTYPES, ("sgd", "rowwise_adagrad")))


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
    generator = torch.Generator().manual_seed(SEED)
    weights = [
        torch.randn(shard.table.num_embeddings, shard.embedding_dim, generator=generator).to(dtype)
        for shard in sample.shards
    ]
    bench = make_bench(small(setup.params), SEED, 0)
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
        ids = draw_ids(with_profile(shard.table, sample.batch_size), sample.batch_size, SEED)
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


def largest_sample(setup: Setup) -> ComputeSample:
    """A sample that fills nine tenths of the arena, with more ids than nearly all drawn samples have.

    It looks up one table twelve times, so that its ids are drawn once.
    """
    shards, width = 12, 16
    rows = int(0.9 * setup.params.arena_bytes / (shards * width * 4))
    table = Table("largest", rows, width, 60.0)
    return ComputeSample("largest", setup.batch_size, (whole(table),) * shards, "rowwise_adagrad")


def check_largest_sample(setup: Setup) -> Check:
    """Run the largest sample, and state its peak memory."""
    sample = largest_sample(setup)
    bench = make_bench(setup.params, SEED, 0)
    if setup.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    (timing,) = bench.measure([sample])
    remedy = "lower --arena-gib (measure.compute.arena_bytes), or use a GPU with more memory"
    if timing.error:
        return Check("largest sample", False, timing.error, remedy, vital=True)
    found = f"forward {timing.forward_ms:.3g} ms, backward {timing.backward_ms:.3g} ms"
    if setup.on_gpu:
        peak, of_gpu = torch.cuda.max_memory_allocated(), torch.cuda.mem_get_info(0)[1]
        found += f", peak {peak / 2**30:.1f} of {of_gpu / 2**30:.1f} GiB"
    return Check("largest sample", True, found, vital=True)
