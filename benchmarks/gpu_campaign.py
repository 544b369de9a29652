"""Record compute costs on this machine's GPU for people who have none: a resumable campaign, then a recording.

    make gpu-campaign CAMPAIGN="--out ~/h200 --samples 20000"
    PYTHONPATH=src python benchmarks/gpu_campaign.py --out ~/h200 --samples 20000       # the same without make

Writes OUT/shards (every finished stretch; run the same command again to resume after a kill or to top up with more
--samples) and at the end OUT/recording: table_pool, compute_samples and compute_costs as Parquet, and card.json with
device, versions, protocol, noise floor and copy bandwidth. Put that folder at data/01_raw/h200_recording, and
`kedro run --env h200` trains on it.

Needs Python 3.11 or newer with torch and fbgemm_gpu for CUDA (1.6 with torch 2.11, 1.8 with 2.13), numpy, pandas,
pyarrow, and of this project's dependencies pydantic, psutil, tqdm, safetensors and scipy; not Kedro. To a machine
without a package index take the last five along:

    pip download --dest wheels --only-binary :all: --python-version 3.12 pydantic psutil tqdm safetensors scipy

The defaults are the published full scale (856 tables, 65,536 samples a batch). No run on a GPU has been recorded yet,
so how many samples a minute measures is unknown: --max-seconds ends with what was measured until then.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from neuroshard_pipeline.augment import ComputeSampleParams, PoolParams, compute_samples, generate_pool, paper_settings
from neuroshard_pipeline.errors import MeasurementError, NeuroShardError
from neuroshard_pipeline.measurement import (
    CardNotes,
    ComputeMeasureParams,
    Recording,
    describe_machine,
    make_card,
    noise_floor,
    reduce_compute,
    run_compute_campaign,
    write_recording,
)
from neuroshard_pipeline.measurement.chunks import campaign_hash, digest
from neuroshard_pipeline.measurement.compute_bench import make_bench
from neuroshard_pipeline.measurement.costs import load_rows
from neuroshard_pipeline.measurement.hardware import fingerprint
from neuroshard_pipeline.tables import compute_samples_from_frame
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Table, whole

_GIB = 2**30
_SUFFIX = ".parquet"
_COPIES = 10
#: Absolute, for sums of a few dozen values of order one in float32.
_KERNEL_TOLERANCE = 1e-3


def main() -> None:
    """Read the command line and run; what the project refuses is told in one line."""
    try:
        run(command_line().parse_args())
    except NeuroShardError as problem:
        raise SystemExit(f"Error: {problem}") from problem


def run(args: argparse.Namespace) -> None:
    """Check the kernels, measure what is missing, and write the recording."""
    pool, frame = pool_and_samples(args)
    settings = paper_settings(frame).assign(optimizer=args.optimizer)
    samples = compute_samples_from_frame(frame, pool, settings)
    params = measure_params(args)
    check_kernels(params, args.seed)
    folder = args.out / "shards"
    started = time.monotonic()
    for key, shard in run_compute_campaign(samples, params, args.seed, stored(folder)):
        store(shard, folder / f"{key}{_SUFFIX}")
        late = args.max_seconds and time.monotonic() - started > args.max_seconds
        if late and not shard["replica"].any():  # a second measurement is nothing without the first
            break
    shards = stored(folder)
    rows = load_rows(shards, campaign_hash(params, args.seed, fingerprint(params.backend)))
    known = set(rows.loc[~rows["replica"].astype(bool), "digest"])
    samples = [sample for sample in samples if digest(sample) in known]
    names = {sample.sample_id for sample in samples}
    costs = reduce_compute(shards, samples, params, args.seed)
    copied = copy_gb_per_s(_device(params), args.copy_mib)
    notes = CardNotes(False, copied, float(rows["seconds"].sum()), tuple(args.known_gap))
    floor = noise_floor(shards, samples, params, args.seed)
    card = make_card(describe_machine(params.backend), params, floor, costs, notes)
    frame, settings = (every[every["sample_id"].isin(names)] for every in (frame, settings))
    write_recording(Recording(args.out / "recording", pool, frame, settings, costs, card))
    print(f"{card['samples']} samples, {card['failures']} failed, noise floor {card['noise_floor']['total']}")
    print(f"recording: {args.out / 'recording'}")


def command_line() -> argparse.ArgumentParser:
    """Every parameter of pool, samples and protocol."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the campaign")
    parser.add_argument("--backend", default="fbgemm_cuda", choices=["fbgemm_cuda", "fbgemm_cpu"])
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "rowwise_adagrad"])
    parser.add_argument("--data-type", default="fp32", choices=["fp32", "fp16"], help="of all weights")
    parser.add_argument("--seed", type=int, default=0, help="of pool, samples, ids and order")
    parser.add_argument("--max-seconds", type=float, default=0, help="stop after this time; 0: measure everything")
    parser.add_argument("--known-gap", action="append", default=[], help="a sentence for the card; may be repeated")
    drawn = parser.add_argument_group("what is measured")
    drawn.add_argument("--pool", type=Path, help="Parquet of a pool, instead of a generated one")
    drawn.add_argument("--samples-file", type=Path, help="Parquet of samples of that pool, instead of drawn ones")
    drawn.add_argument("--tables", type=int, default=856)
    drawn.add_argument("--batch-size", type=int, default=65536)
    drawn.add_argument("--row-scale", type=float, default=1.0)
    drawn.add_argument("--samples", type=int, default=20_000)
    drawn.add_argument("--min-tables", type=int, default=1)
    drawn.add_argument("--max-tables", type=int, default=40, help="big ranks of a plan hold this many")
    drawn.add_argument("--dimensions", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128])
    drawn.add_argument("--memory-gib", type=float, default=32.0, help="weights of the largest sample")
    timed = parser.add_argument_group("how it is timed")
    timed.add_argument("--visits", type=int, default=2)
    timed.add_argument("--warmup-iterations", type=int, default=1)
    timed.add_argument("--iterations", type=int, default=5)
    timed.add_argument("--iteration-statistic", default="median", choices=["min", "median"])
    timed.add_argument("--workers", type=int, default=1, help="GPUs used at the same time")
    timed.add_argument("--arena-gib", type=float, default=36.0)
    timed.add_argument("--chunk-samples", type=int, default=100)
    timed.add_argument("--extra-visit-budget-s", type=float, default=60.0)
    timed.add_argument("--copy-mib", type=int, default=4096, help="size of the copies that time the roofline")
    return parser


def pool_and_samples(args: argparse.Namespace) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The pool and the table combinations to measure."""
    generated = PoolParams(num_tables=args.tables, batch_size=args.batch_size, row_scale=args.row_scale, seed=args.seed)
    pool = pd.read_parquet(args.pool) if args.pool else generate_pool(generated)
    if args.data_type != "fp32":
        pool = pool.assign(data_type=args.data_type)
    if args.samples_file:
        return pool, pd.read_parquet(args.samples_file)
    params = ComputeSampleParams(
        num_samples=args.samples,
        batch_size=args.batch_size,
        dimensions=tuple(args.dimensions),
        min_tables=args.min_tables,
        max_tables=args.max_tables,
        memory_bytes=round(args.memory_gib * _GIB),
        seed=args.seed,
    )
    return pool, compute_samples(pool, params)


def measure_params(args: argparse.Namespace) -> ComputeMeasureParams:
    """The protocol, with the shares of the default profile; the median of visits, as a GPU's clock moves both ways."""
    return ComputeMeasureParams(
        backend=args.backend,
        engine="local",
        cluster_address=None,
        visits=args.visits,
        warmup_iterations=args.warmup_iterations,
        iterations=args.iterations,
        iteration_statistic=args.iteration_statistic,
        visit_statistic="median",
        cache_treatment="cold_rows",
        shuffle="samples",
        workers=args.workers,
        threads=1,
        arena_bytes=round(args.arena_gib * _GIB),
        thorough_lookup_bytes=None,
        least_visits=1,
        chunk_samples=args.chunk_samples,
        noise_floor_share=0.03,
        disturbed_slowdown=1.3,
        wide_spread_share=0.1,
        extra_visit_budget_s=args.extra_visit_budget_s,
        timeout_s=1800.0,
    )


def check_kernels(params: ComputeMeasureParams, seed: int) -> None:
    """Compare a small lookup with torch's embedding bag in float64 on the CPU.

    Raises:
        MeasurementError: the outputs differ; FBGEMM, torch and the device do not go together.
    """
    tables = [Table("check-wide", 1000, 128, 9.0), Table("check-narrow", 70, 4, 0.7)]
    sample = ComputeSample("check", 64, tuple(whole(table) for table in tables))
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(table.num_embeddings, table.embedding_dim, generator=generator) for table in tables]
    bench = make_bench(params.model_copy(update={"arena_bytes": 2**22}), seed, 0)
    output, _ = bench.run_once(sample, [weight.to(_device(params)) for weight in weights])
    expected = []
    for table, weight in zip(tables, weights, strict=True):
        ids = draw_ids(with_profile(table, sample.batch_size), sample.batch_size, seed)
        indices, offsets = torch.from_numpy(ids.indices), torch.from_numpy(ids.offsets)
        bag = torch.nn.functional.embedding_bag
        expected.append(bag(indices, weight.double(), offsets, mode="sum", include_last_offset=True))
    worst = float((output.cpu().double() - torch.cat(expected, dim=1)).abs().max())
    if not worst < _KERNEL_TOLERANCE:
        raise MeasurementError(
            f"{params.backend} gives outputs that are {worst:g} off torch's embedding_bag in float64; do the versions "
            f"of torch ({torch.__version__}) and fbgemm_gpu go together?"
        )


def stored(folder: Path) -> dict[str, partial[pd.DataFrame]]:
    """The shards of earlier runs: key and a function that reads it."""
    paths = [path for path in sorted(folder.rglob(f"*{_SUFFIX}")) if not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix().removesuffix(_SUFFIX): partial(pd.read_parquet, path) for path in paths}


def store(shard: pd.DataFrame, path: Path) -> None:
    """Write all of a shard or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    shard.to_parquet(part, index=False)
    os.replace(part, path)


def copy_gb_per_s(device: str, mebibytes: int) -> float:
    """Best of some device-to-device copies, bytes read + bytes written, in 1e9 bytes per second."""
    source = torch.ones(mebibytes * 2**18, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(_COPIES):
        _synchronise(device)
        start = time.perf_counter()
        target.copy_(source)
        _synchronise(device)
        seconds.append(time.perf_counter() - start)
    return 2 * 4 * source.numel() / min(seconds) / 1e9


def _device(params: ComputeMeasureParams) -> str:
    return "cuda" if params.backend == "fbgemm_cuda" else "cpu"


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
