"""Speed and noise of this project's measurement compared with a naive loop, interleaved in one process.

The naive loop is that of the reference code of [Zha2023]: for every sample it builds an operator with new random
weights, draws ids, runs 5 + 10 iterations and takes the median. This project visits every sample several times, each
time with cached ids and operators, and with weights in one large buffer that all samples share, the arena. A visit
takes the minimum of 2 or 4 iterations. The project uses the lower quartile of the visits; the table also shows their
minimum. In rows such as `12 to 3 visits`, expensive samples get fewer visits, as in `kedro run`. Noise is the relative
difference between two independent measurements of the same sample (forward + backward).

    OMP_NUM_THREADS=1 python benchmarks/bench_measurement.py            # about a minute on 2 cores

The last lines show how the time is spent. The kernels take most of it, and no loop can avoid their time, because noise
falls only with the number of timed iterations, however they are distributed over visits. The last lines also give the
speed-up of a loop that runs kernels and does no other work.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from neuroshard_pipeline.augment import ComputeSampleParams, PoolParams, compute_samples, generate_pool
from neuroshard_pipeline.measurement import ComputeMeasureParams, fbgemm
from neuroshard_pipeline.measurement.chunks import rounds_of
from neuroshard_pipeline.measurement.compute_bench import FbgemmCpuBench
from neuroshard_pipeline.tables import compute_samples_from_frame
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.samples import ComputeSample

BATCH_SIZE = 512
ARENA_BYTES = 2**29
#: Numbers of the environment thorough: tables from which training samples are drawn, samples, and the maximum number of
#: tables in a sample.
PROFILE_TABLES, PROFILE_SAMPLES, PROFILE_MAX_TABLES = 3424, 5960, 15
NAIVE_WARMUP, NAIVE_ITERATIONS = 5, 10
VISITS = (1, 2, 4, 6, 8, 12)
ITERATIONS = (2, 4)
LOWER_QUARTILE = 0.25
#: Maximum and minimum number of visits; expensive samples get fewer. The last pair, with 4 iterations, is that of the
#: environment thorough.
MOST_AND_LEAST_VISITS = ((2, 1), (4, 1), (6, 2), (12, 3))
THOROUGH_LOOKUP_BYTES = 2**21


def draw_samples(count: int, seed: int) -> list[ComputeSample]:
    """Samples from a small pool, so that a table is in as many samples as in the environment thorough."""
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


def protocol_params(iterations: int, visits: int = 1, least_visits: int = 1) -> ComputeMeasureParams:
    """The protocol of conf/base/parameters_measure.yml with other iterations, visits, chunks and time limits."""
    return ComputeMeasureParams(
        backend="fbgemm_cpu",
        engine="local",
        cluster_address=None,
        visits=visits,
        warmup_iterations=0,
        iterations=iterations,
        iteration_statistic="min",
        visit_statistic="lower_quartile",
        cache_treatment="cold_rows",
        shuffle="samples",
        workers=1,
        threads=1,
        arena_bytes=ARENA_BYTES,
        thorough_lookup_bytes=THOROUGH_LOOKUP_BYTES,
        least_visits=least_visits,
        ids_folder=None,
        chunk_samples=50,
        noise_floor_share=0.03,
        time_budget_s=None,
        timeout_s=60.0,
    )


def naive_ms(sample: ComputeSample, seed: int) -> float:
    """Forward + backward cost of one sample by the naive loop, ms."""
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


class Noise(NamedTuple):
    """Relative disagreement of two measurements: the median over samples and the 90th percentile."""

    median: float
    p90: float

    def __str__(self) -> str:
        return f"{100 * self.median:5.1f} % {100 * self.p90:6.1f} %"


def disagreement(first: np.ndarray, second: np.ndarray) -> Noise:
    """Noise of two measurements of the same samples, (samples,) each."""
    apart = np.abs(first - second) / ((first + second) / 2)
    return Noise(float(np.median(apart)), float(np.quantile(apart, 0.9)))


@dataclass
class Ours:
    """Visits of every sample by this project's loop.

    Attributes:
        bench: the bench.
        first_s: time of the first round of visits, which draws ids and builds operators.
        costs_ms: cost of every later visit, (rounds, samples).
        visits_s: time of every later visit, (rounds, samples).
        rounds_s: time of every later round, (rounds,).
    """

    bench: FbgemmCpuBench
    first_s: float
    costs_ms: list[np.ndarray]
    visits_s: list[np.ndarray]
    rounds_s: list[float]

    def visit(self, samples: Sequence[ComputeSample], order: np.ndarray) -> None:
        """Visit all samples once in the given order."""
        begin = time.perf_counter()
        timings = self.bench.measure([samples[index] for index in order])
        self.rounds_s.append(time.perf_counter() - begin)
        costs, seconds = np.empty(len(samples)), np.empty(len(samples))
        costs[order] = [timing.forward_ms + timing.backward_ms for timing in timings]
        seconds[order] = [timing.seconds for timing in timings]
        self.costs_ms.append(costs)
        self.visits_s.append(seconds)

    def seconds(self, visits: int | np.ndarray) -> float:
        """Time of a campaign with this number of visits, one number for all samples or one per sample (samples,)."""
        share = np.mean(self.visits_s, axis=0) / np.sum(np.mean(self.visits_s, axis=0))
        return self.first_s + float(np.sum((visits - 1) * share)) * float(np.mean(self.rounds_s))

    def measured_twice(self, rounds: Sequence[Collection[int]], quantile: float) -> Noise:
        """Noise between two halves of the rounds: even and odd ones.

        Args:
            rounds: for every sample, the rounds whose visits are used. They are counted within a half, and are the same
                in both halves.
            quantile: quantile of these visits that is the cost of the sample.
        """
        costs = np.array(self.costs_ms)
        halves = [
            [np.quantile(costs[start::2][sorted(chosen), sample], quantile) for sample, chosen in enumerate(rounds)]
            for start in (0, 1)
        ]
        return disagreement(*map(np.array, halves))


def ours(samples: Sequence[ComputeSample], iterations: int, seed: int) -> Ours:
    """This project's loop after its first round."""
    bench = FbgemmCpuBench(protocol_params(iterations), seed)
    begin = time.perf_counter()
    bench.measure(samples)
    return Ours(bench, time.perf_counter() - begin, [], [], [])


def measure(samples: Sequence[ComputeSample], seed: int) -> None:
    """Run all loops, interleaved, and print the table."""
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
        # Naive measurements are spread over the whole run; the two of one sample are in successive rounds.
        for index in np.array_split(fixed, rounds // 2)[visit // 2]:
            begin = time.perf_counter()
            naive[visit % 2, index] = naive_ms(samples[index], seed)
            naive_s += time.perf_counter() - begin
    naive_rate = 2 * len(samples) / naive_s
    best_ms = min(loops.items())[1].costs_ms
    print(f"{len(samples)} samples, batch {BATCH_SIZE}, mean cost {np.min(best_ms, axis=0).mean():.2f} ms")
    print("                                                 difference of two measurements, median / p90")
    print("protocol                    samples/s   speed-up   minimum of visits      lower quartile of visits")
    naive_noise = disagreement(*naive)
    print(f"naive, 5 + 10, median      {naive_rate:10.1f} {1:9.1f}x   {naive_noise}")
    quiet_enough: list[float] = []
    for iterations, loop in loops.items():
        kernels_ms = iterations * np.mean(loop.costs_ms, axis=0)
        every = [(visits, visits) for visits in VISITS]
        for most, least in (*every, *MOST_AND_LEAST_VISITS):
            params = protocol_params(iterations, most, least)
            rounds = [rounds_of(sample, params) for sample in samples]
            counts = np.array([len(chosen) for chosen in rounds])
            low, quartile = (loop.measured_twice(rounds, q) for q in (0.0, LOWER_QUARTILE))
            name = f"{most} visits" if most == least else f"{most} to {least} visits"
            print_row(f"ours, {name} of {iterations}", len(samples) / loop.seconds(counts), naive_rate, low, quartile)
            if any(noise.median <= naive_noise.median and noise.p90 <= naive_noise.p90 for noise in (low, quartile)):
                quiet_enough.append(float(np.mean(counts * kernels_ms)))
    print_time_parts(samples, loops, seed)
    print_bound(quiet_enough, 1e3 / naive_rate)


def print_row(name: str, rate: float, naive_rate: float, low: Noise, quartile: Noise) -> None:
    """One line of the table."""
    print(f"{name:26s} {rate:10.1f} {rate / naive_rate:9.1f}x   {low!s:22s} {quartile}")


def print_bound(quiet_enough: Sequence[float], naive_ms: float) -> None:
    """Print the speed-up of a loop that spends time on kernels only.

    Args:
        quiet_enough: kernel time of each protocol with no more noise than the naive loop, ms per sample.
        naive_ms: time of one naive measurement.
    """
    if not quiet_enough:
        print("\nEvery protocol had more noise than the naive loop.")
        return
    least_ms = min(quiet_enough)
    print(
        f"\nOf the protocols with no more noise than the naive loop, the fastest spends {least_ms:.1f} ms per "
        f"sample in kernels. The naive loop takes {naive_ms:.1f} ms, so without other work the speed-up would be "
        f"{naive_ms / least_ms:.1f}."
    )


def print_time_parts(samples: Sequence[ComputeSample], loops: dict[int, Ours], seed: int) -> None:
    """Print the time of the parts of a visit."""
    begin = time.perf_counter()
    for sample in samples:
        for shard in sample.shards:
            draw_ids(shard.table, sample.batch_size, seed)
    drawing_ms = (time.perf_counter() - begin) * 1e3 / len(samples)
    print(f"\nper sample: drawing ids {drawing_ms:.2f} ms (naive: at every measurement; ours: once per table)")
    for iterations, loop in loops.items():
        round_ms = float(np.mean(loop.rounds_s)) * 1e3 / len(samples)
        kernels_ms = iterations * float(np.mean(loop.costs_ms))
        print(
            f"a visit of {iterations} iterations takes {round_ms:.2f} ms; {iterations} times its fastest iteration is "
            f"{kernels_ms:.2f} ms ({kernels_ms / round_ms:.0%}). The first visit takes "
            f"{loop.first_s * 1e3 / len(samples) - round_ms:.2f} ms more, for ids and FBGEMM's operator"
        )
    print("The rest is spent on slower iterations, on joining ids, and, once per round, on garbage collection and on")
    print("untimed visits.")


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    measure(draw_samples(arguments.samples, arguments.seed), arguments.seed)


if __name__ == "__main__":
    main()
