"""Samples per second and noise: the naive measuring loop against this project's, in one process, interleaved.

The naive loop is what the reference code of [Zha2023] does: for every sample build an operator with fresh random
weights, draw ids, run 5 + 10 iterations and take the median. Ours visits every sample several times, each time with
a view of one arena, cached ids and a cached operator, takes the smallest of 2 or 4 iterations, and of the visits the
smallest (as this project once did) or the lower quartile (as it does). Noise is how far two independent measurements
of the same sample lie apart, relative to their mean (forward + backward).

    OMP_NUM_THREADS=1 python benchmarks/bench_measurement.py            # about two minutes on 2 cores

The last lines say where the time goes: most of it to the kernels themselves, which no measuring loop can save.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

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
VISITS = (1, 2, 4, 6, 8, 12)
ITERATIONS = (2, 4)
LOWER_QUARTILE = 0.25


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


def protocol_params(iterations: int) -> ComputeMeasureParams:
    """The parameters of the default CPU profile that matter to one worker."""
    return ComputeMeasureParams(
        backend="fbgemm_cpu",
        engine="local",
        cluster_address=None,
        visits=1,
        warmup_iterations=0,
        iterations=iterations,
        iteration_statistic="min",
        visit_statistic="lower_quartile",
        cache_treatment="cold_rows",
        shuffle="samples",
        workers=1,
        threads=1,
        arena_bytes=ARENA_BYTES,
        thorough_lookup_bytes=None,
        least_visits=1,
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


@dataclass
class Ours:
    """Visits of every sample by our loop.

    Attributes:
        bench: what visits.
        first_s: time of a first visit of all samples, which draws ids and builds operators.
        costs_ms: (rounds, samples).
        rounds_s: time of every later round.
    """

    bench: FbgemmCpuBench
    first_s: float
    costs_ms: list[np.ndarray]
    rounds_s: list[float]

    def visit(self, samples: Sequence[ComputeSample], order: np.ndarray) -> None:
        """One more round in the given order."""
        begin = time.perf_counter()
        timings = self.bench.measure([samples[index] for index in order])
        self.rounds_s.append(time.perf_counter() - begin)
        costs = np.empty(len(samples))
        costs[order] = [timing.forward_ms + timing.backward_ms for timing in timings]
        self.costs_ms.append(costs)

    def seconds(self, visits: int) -> float:
        """What so many visits of all samples take."""
        return self.first_s + (visits - 1) * float(np.mean(self.rounds_s))


def ours(samples: Sequence[ComputeSample], iterations: int, seed: int) -> Ours:
    """A bench of our own after its first visit."""
    bench = FbgemmCpuBench(protocol_params(iterations), seed)
    begin = time.perf_counter()
    bench.measure(samples)
    return Ours(bench, time.perf_counter() - begin, [], [])


def measure(samples: Sequence[ComputeSample], seed: int) -> None:
    """Run all, interleaved, and print the table."""
    loops = {iterations: ours(samples, iterations, seed) for iterations in ITERATIONS}
    rounds = 2 * max(VISITS)
    naive = np.zeros((2, len(samples)))
    naive_s = 0.0
    order = np.random.default_rng(seed)
    fixed = order.permutation(len(samples))
    gc.freeze()  # as a worker does
    for visit in tqdm(range(rounds), desc="rounds", disable=None):
        for loop in loops.values():
            loop.visit(samples, order.permutation(len(samples)))
        # The two naive measurements of every sample are spread over the whole run like the visits are.
        for index in np.array_split(fixed, rounds // 2)[visit // 2]:
            begin = time.perf_counter()
            naive[visit % 2, index] = naive_ms(samples[index], seed)
            naive_s += time.perf_counter() - begin
    naive_rate = 2 * len(samples) / naive_s
    best_ms = min(loops.items())[1].costs_ms
    print(f"{len(samples)} samples, batch {BATCH_SIZE}, mean cost {np.min(best_ms, axis=0).mean():.2f} ms")
    print("                                                 disagreement of two measurements, median / p90")
    print("protocol                    samples/s   speed-up   smallest visit         lower quartile of visits")
    print(f"naive, 5 + 10, median      {naive_rate:10.1f} {1:9.1f}x   {disagreement(*naive)}")
    for iterations, loop in loops.items():
        costs = np.array(loop.costs_ms)
        for visits in VISITS:
            rate = len(samples) / loop.seconds(visits)
            halves = [costs[start : 2 * visits + start : 2] for start in (0, 1)]
            low, quartile = (
                disagreement(*(np.quantile(half, q, axis=0) for half in halves)) for q in (0.0, LOWER_QUARTILE)
            )
            name = f"ours, {visits:2d} visits of {iterations}"
            print(f"{name:26s} {rate:10.1f} {rate / naive_rate:9.1f}x   {low:22s} {quartile}")
    where_time_goes(samples, loops, seed)


def where_time_goes(samples: Sequence[ComputeSample], loops: dict[int, Ours], seed: int) -> None:
    """Print how long the parts of a visit take."""
    begin = time.perf_counter()
    for sample in samples:
        for shard in sample.shards:
            draw_ids(shard.table, sample.batch_size, seed)
    drawing_ms = (time.perf_counter() - begin) * 1e3 / len(samples)
    print(f"\nper sample: ids drawn anew {drawing_ms:.2f} ms (naive: at every measurement; ours: once per table)")
    for iterations, loop in loops.items():
        round_ms = float(np.mean(loop.rounds_s)) * 1e3 / len(samples)
        kernels_ms = iterations * float(np.mean(loop.costs_ms))
        print(
            f"visit of {iterations} iterations: {round_ms:.2f} ms, of which {iterations} times its best iteration "
            f"{kernels_ms:.2f} ms ({kernels_ms / round_ms:.0%}); the first visit takes "
            f"{loop.first_s * 1e3 / len(samples) - round_ms:.2f} ms more, for ids and FBGEMM's operator"
        )
    print("The rest of a visit: slower iterations, joining ids, the reference probe, settling and the collector.")


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    measure(draw_samples(arguments.samples, arguments.seed), arguments.seed)


if __name__ == "__main__":
    main()
