"""Samples per second and noise: the naive measuring loop against this project's, in one process, interleaved.

The naive loop is what the reference code of [Zha2023] does: for every sample build an operator with fresh random
weights, draw ids, run 5 + 10 iterations and take the median. Ours visits every sample several times, each time with
a view of one arena, cached ids and a cached operator, 2 iterations, and takes the smallest visit. Noise is how
far two independent measurements of the same sample lie apart, relative to their mean (forward + backward).

    OMP_NUM_THREADS=1 python benchmarks/bench_measurement.py            # about a minute on 2 cores

Expect one visit, which is about as noisy as the naive loop and includes building the operator, to be about 8 times
faster, every further visit 15 times, and 15 visits to take as long as the naive loop at half to a third of its
noise. What is left is the kernels themselves (last line) and 2 ms for FBGEMM to build an operator once.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence

import numpy as np
import torch

from neuroshard_pipeline.measurement import ComputeMeasureParams, fbgemm
from neuroshard_pipeline.measurement.compute_bench import FbgemmCpuBench
from neuroshard_pipeline.tables import (
    ComputeSampleParams,
    PoolParams,
    compute_samples,
    compute_samples_from_frame,
    generate_pool,
)
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.samples import ComputeSample

BATCH_SIZE = 512
ARENA_BYTES = 2**29
PROFILE_TABLES, PROFILE_SAMPLES, PROFILE_MAX_TABLES = 856, 1200, 15
NAIVE_WARMUP, NAIVE_ITERATIONS = 5, 10
VISITS = (1, 2, 3, 4, 6, 9, 12, 15)


def draw_samples(count: int, seed: int) -> list[ComputeSample]:
    """Samples as in the default CPU profile, from a pool so small that each table stands in as many as there."""
    num_tables = max(PROFILE_MAX_TABLES, round(PROFILE_TABLES * count / PROFILE_SAMPLES))
    pool = generate_pool(PoolParams(num_tables=num_tables, batch_size=BATCH_SIZE, row_scale=128, seed=seed))
    params = ComputeSampleParams(
        num_samples=count,
        batch_size=BATCH_SIZE,
        dimensions=(4, 8, 16, 32, 64, 128),
        min_tables=1,
        max_tables=PROFILE_MAX_TABLES,
        memory_bytes=ARENA_BYTES // 2,
        seed=seed,
    )
    return compute_samples_from_frame(compute_samples(pool, params), pool)


def protocol_params() -> ComputeMeasureParams:
    """The parameters of the default CPU profile that matter to one worker."""
    return ComputeMeasureParams(
        backend="fbgemm_cpu",
        engine="local",
        cluster_address=None,
        visits=1,
        warmup_iterations=0,
        iterations=2,
        iteration_statistic="min",
        visit_statistic="min",
        cache_treatment="cold_rows",
        workers=1,
        threads=1,
        arena_bytes=ARENA_BYTES,
        chunk_samples=50,
        noise_floor_share=0.03,
        disturbed_slowdown=1.5,
        wide_spread_share=0.1,
        extra_visit_budget_s=0.0,
        timeout_s=60.0,
    )


def naive_ms(sample: ComputeSample, seed: int) -> float:
    """Forward + backward of one sample the naive way, ms."""
    host, cpu = fbgemm.EmbeddingLocation.HOST, fbgemm.ComputeDevice.CPU
    specs = [(shard.table.num_embeddings, shard.embedding_dim, host, cpu) for shard in sample.shards]
    operator = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(specs, optimizer=fbgemm.OPTIMIZERS["sgd"])
    operator.init_embedding_weights_uniform(-0.01, 0.01)
    drawn = [draw_ids(shard.table, sample.batch_size, seed) for shard in sample.shards]
    starts = np.cumsum([0] + [len(ids.indices) for ids in drawn])
    indices = torch.from_numpy(np.concatenate([ids.indices for ids in drawn]))
    bounds = [ids.offsets[:-1] + start for ids, start in zip(drawn, starts, strict=False)]
    offsets = torch.from_numpy(np.concatenate([*bounds, starts[-1:]]))
    timed = []
    for _ in range(NAIVE_WARMUP + NAIVE_ITERATIONS):
        start = time.perf_counter()
        output = operator(indices, offsets)
        output.backward(torch.ones_like(output))
        timed.append((time.perf_counter() - start) * 1e3)
    return float(np.median(timed[NAIVE_WARMUP:]))


def disagreement(first: np.ndarray, second: np.ndarray) -> str:
    """Median and 90th percentile of the relative disagreement, as text."""
    apart = np.abs(first - second) / ((first + second) / 2)
    return f"{100 * np.median(apart):5.1f} % {100 * np.quantile(apart, 0.9):6.1f} %"


def measure(samples: Sequence[ComputeSample], seed: int) -> None:
    """Run both, interleaved, and print the table."""
    bench = FbgemmCpuBench(protocol_params(), seed)
    rounds = 2 * max(VISITS)
    ours = np.zeros((rounds, len(samples)))
    naive = np.zeros((2, len(samples)))
    ours_s = np.zeros(rounds)
    naive_s = kernel_s = 0.0
    order = np.random.default_rng(seed)
    fixed = order.permutation(len(samples))
    begin = time.perf_counter()
    bench.measure(samples)  # the first visit also draws ids and builds operators
    first_s = time.perf_counter() - begin
    gc.freeze()  # as a worker does
    for visit in range(rounds):
        shuffled = order.permutation(len(samples))
        begin = time.perf_counter()
        timings = bench.measure([samples[index] for index in shuffled])
        ours_s[visit] = time.perf_counter() - begin
        ours[visit, shuffled] = [timing.forward_ms + timing.backward_ms for timing in timings]
        kernel_s += ours[visit].sum() / 1e3
        # The two naive measurements of every sample are spread over the whole run like the visits are.
        for index in np.array_split(fixed, rounds // 2)[visit // 2]:
            begin = time.perf_counter()
            naive[visit % 2, index] = naive_ms(samples[index], seed)
            naive_s += time.perf_counter() - begin
    naive_rate = 2 * len(samples) / naive_s
    print(f"{len(samples)} samples, batch {BATCH_SIZE}, mean cost {ours.min(axis=0).mean():.2f} ms")
    print("protocol                    samples/s   speed-up   disagreement median / p90")
    print(f"naive, 5 + 10, median      {naive_rate:10.1f} {1:9.1f}x   {disagreement(*naive)}")
    for visits in VISITS:
        rate = len(samples) / (first_s + (visits - 1) * ours_s.mean())
        halves = [ours[start : 2 * visits + start : 2].min(axis=0) for start in (0, 1)]
        text = disagreement(*halves)
        print(f"ours, {visits:2d} visits of 2       {rate:10.1f} {rate / naive_rate:9.1f}x   {text}")
    share = 2 * kernel_s / ours_s.sum()
    print(f"of a visit's time {100 * share:.0f} % is 2 iterations at their best; the rest: slower iterations,")
    print("joining ids, calling the operator, the reference probe and the collector between stretches")


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    measure(draw_samples(arguments.samples, arguments.seed), arguments.seed)


if __name__ == "__main__":
    main()
