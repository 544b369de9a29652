"""Measures compute costs on this machine's GPU in a resumable campaign, and writes a recording for other machines.

    make gpu-campaign CAMPAIGN="--out ~/h200 --samples 20000"
    PYTHONPATH=src python benchmarks/gpu/gpu_campaign.py --out ~/h200 --samples 20000       # the same without make

A campaign is a set of measurements, in which every sample is timed in several visits. The script first runs the
checks of `gpu_check.py`. It then logs the number of visits, the expected minutes and the GB of ids, and writes the ids
of all tables to OUT/ids. It writes every finished chunk of samples to OUT/records. To resume after a kill, run the same
command again; with more --samples, it extends the campaign. At the end, the script writes OUT/recording: pool,
samples with their settings, and costs as Parquet, and card.json with device, versions, protocol, noise floor and copy
bandwidth. To train on a copy of this folder, give `kedro run` its path as `recording.folder`, and `recorded` as
`measure.compute.backend`.

The script needs Python 3.11 or newer with torch and fbgemm_gpu for CUDA (1.6 with torch 2.11, 1.8 with 2.13), numpy,
pandas, pyarrow, pydantic, pyyaml, psutil, tqdm, safetensors and scipy, but no Kedro. If the machine has no package
index and lacks pydantic and what follows it here, download these six elsewhere, for the machine's version of Python:

    pip download --dest wheels --only-binary :all: --python-version 3.11 pydantic pyyaml psutil tqdm safetensors scipy

The defaults are the published full scale (856 tables, batches of 65,536 samples). One H200 measures about 20 visits per
second. With --max-seconds, the script stops after about that time, and the recording contains all samples that have a
visit by then.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

try:
    import gpu_check
    import pandas as pd
    from gpu_check_setup import Setup
    from gpu_check_timings import copy_gb_per_s
    from gpu_check_vital import check_kernels

    from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams, compute_samples, paper_settings
    from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
    from neuroshard_pipeline.errors import MeasurementError, NeuroShardError
    from neuroshard_pipeline.measurement import ComputeCampaign, ComputeMeasureParams, Recording
    from neuroshard_pipeline.measurement.chunks import digest
    from neuroshard_pipeline.measurement.costs import load_rows
    from neuroshard_pipeline.measurement.cuda import require_devices
    from neuroshard_pipeline.measurement.hardware import describe_machine
    from neuroshard_pipeline.measurement.identity import name_of
    from neuroshard_pipeline.measurement.recording import CARD_FILE, CARD_FORMAT, FILES
    from neuroshard_pipeline.tables.frames import compute_samples_from_frame
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    raise SystemExit(
        f"Error: {sys.executable} has no module {missing.name}; name a Python that has it with PYTHON=..., or make "
        "one with: make .venv-cuda/.run ENV=cuda"
    ) from None

#: Files of `--drawn`: the datasets of these names.
DRAWN = tuple(FILES)[:3]
_GIB = 2**30
_SUFFIX = ".parquet"
_QUANTILES = {"p05": 0.05, "median": 0.5, "p95": 0.95}


@dataclass(frozen=True)
class CardNotes:
    """What a data card says about a campaign besides its parameters and results.

    Attributes:
        stand_in: whether the costs are invented, as in tests.
        copy_gb_per_s: measured copy bandwidth of the device, counting bytes read and written; None if unknown.
        seconds: time that the visits took, summed over workers.
        known_gaps: what the recording does not cover, one sentence each.
    """

    stand_in: bool
    copy_gb_per_s: float | None
    seconds: float
    known_gaps: tuple[str, ...]


def main() -> None:
    """Read the command line and run; on a `NeuroShardError`, print its message as one line and exit."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        run(command_line().parse_args())
    except NeuroShardError as problem:
        raise SystemExit(f"Error: {problem}") from problem


def run(args: argparse.Namespace) -> None:
    """Check the kernels, measure what is missing, and write the recording."""
    pool, frame, settings = pool_samples_and_settings(args)
    samples = compute_samples_from_frame(frame, pool, settings)
    params = measure_params(args)
    check_device(args, params)
    folder = args.out / "records"
    started = time.monotonic()
    for key, record in ComputeCampaign(params, args.seed).run(samples, stored(folder)):
        store(record, folder / f"{key}{_SUFFIX}")
        late = args.max_seconds and time.monotonic() - started > args.max_seconds
        # A record of repeats serves the noise floor alone. The campaign ends after a record that has costs.
        if late and not record["replica"].any():
            break
    records = stored(folder)
    rows = load_rows(records, name_of(ComputeCampaign(params, args.seed).identity()))
    known = set(rows.loc[~rows["replica"].astype(bool), "digest"])
    samples = [sample for sample in samples if digest(sample) in known]
    names = {sample.sample_id for sample in samples}
    costs = ComputeCampaign(params, args.seed).costs(records, samples)
    copied = copy_gb_per_s(_device(params), args.copy_mib)
    notes = CardNotes(False, copied, float(rows["seconds"].sum()), tuple(args.known_gap))
    floor = ComputeCampaign(params, args.seed).summary(records, samples).noise_floor
    card = make_card(describe_machine(params.backend), params, floor, costs, notes)
    frame, settings = (every[every["sample_id"].isin(names)] for every in (frame, settings))
    write_recording(Recording(args.out / "recording", pool, frame, settings, costs, card))
    print(f"{card['samples']} samples, {card['failures']} failed, noise floor {card['noise_floor']['total']}")
    print(f"recording: {args.out / 'recording'}")


def command_line() -> argparse.ArgumentParser:
    """The parser of the command line, with parameters of pool, samples and protocol."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the campaign")
    parser.add_argument("--backend", default="fbgemm_cuda", choices=["fbgemm_cuda", "fbgemm_cpu"])
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "rowwise_adagrad"])
    parser.add_argument("--data-type", default="fp32", choices=["fp32", "fp16"], help="data type of all weights")
    parser.add_argument("--seed", type=int, default=0, help="seed of pool, samples, ids and order")
    parser.add_argument("--max-seconds", type=float, default=0, help="stop after this time; 0: no limit")
    parser.add_argument(
        "--known-gap",
        action="append",
        default=[],
        help="what the recording does not cover, one sentence for the card; repeatable",
    )
    drawn = parser.add_argument_group("what is measured")
    drawn.add_argument(
        "--drawn",
        type=Path,
        help=f"folder with {', '.join(DRAWN)}, instead of samples that are drawn here: what `kedro run --pipeline "
        "augment` draws for an environment, or an earlier recording",
    )
    drawn.add_argument("--tables", type=int, default=856)
    drawn.add_argument("--batch-size", type=int, default=65536)
    drawn.add_argument("--row-scale", type=float, default=1.0)
    drawn.add_argument("--samples", type=int, default=20_000)
    drawn.add_argument("--min-tables", type=int, default=1)
    drawn.add_argument("--max-tables", type=int, default=40, help="most tables of a sample")
    drawn.add_argument("--dimensions", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128])
    drawn.add_argument("--memory-gib", type=float, default=32.0, help="maximum size of the weights of a sample")
    timed = parser.add_argument_group("how it is timed")
    timed.add_argument("--visits", type=int, default=2)
    timed.add_argument("--warmup-iterations", type=int, default=1)
    timed.add_argument("--iterations", type=int, default=5)
    timed.add_argument("--iteration-statistic", default="median", choices=["min", "median"])
    timed.add_argument("--workers", type=int, default=1, help="number of GPUs that measure at the same time")
    timed.add_argument("--arena-gib", type=float, default=32.5)
    timed.add_argument("--chunk-samples", type=int, default=100)
    timed.add_argument("--copy-mib", type=int, default=4096, help="size of the copies that measure the copy bandwidth")
    return parser


def pool_samples_and_settings(args: argparse.Namespace) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The pool, the table combinations to measure, and their settings."""
    if args.drawn:
        if missing := [name for name in DRAWN if not (args.drawn / name).is_file()]:
            raise MeasurementError(f"--drawn {args.drawn} lacks {', '.join(missing)}")
        pool, samples, settings = (pd.read_parquet(args.drawn / name) for name in DRAWN)
        return pool, samples, settings
    generated = PoolParams(num_tables=args.tables, batch_size=args.batch_size, row_scale=args.row_scale, seed=args.seed)
    pool = generate_pool(generated).assign(**({} if args.data_type == "fp32" else {"data_type": args.data_type}))
    params = ComputeSampleParams(
        num_samples=args.samples,
        batch_size=args.batch_size,
        dimensions=tuple(args.dimensions),
        min_tables=args.min_tables,
        max_tables=args.max_tables,
        memory_bytes=round(args.memory_gib * _GIB),
        seed=args.seed,
    )
    samples = compute_samples(pool, params)
    return pool, samples, paper_settings(samples).assign(optimizer=args.optimizer)


def measure_params(args: argparse.Namespace) -> ComputeMeasureParams:
    """The protocol; it takes the median of visits, because the frequency of a GPU rises and falls between visits."""
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
        ids_folder=str(args.out / "ids"),
        chunk_samples=args.chunk_samples,
        noise_floor_share=0.03,
        time_budget_s=None,
        timeout_s=1800.0,
    )


def write_recording(recording: Recording) -> None:
    """Write a recording to its folder; the card comes last, because a folder without it cannot be read."""
    recording.folder.mkdir(parents=True, exist_ok=True)
    frames = (recording.pool, recording.samples, recording.settings, recording.costs)
    for name, frame in zip(FILES, frames, strict=True):
        frame.to_parquet(recording.folder / name, index=False, compression="zstd")
    (recording.folder / CARD_FILE).write_text(json.dumps(dict(recording.card), indent=1) + "\n")


def make_card(
    machine: Mapping[str, Any],
    params: ComputeMeasureParams,
    noise_floor: Mapping[str, Any],
    costs: pd.DataFrame,
    notes: CardNotes,
) -> dict[str, Any]:
    """The data card of a campaign, ready for JSON.

    Args:
        machine: the machine that measured (`hardware.describe_machine`).
        params: parameters of the campaign.
        noise_floor: `noise_floor` of `campaign.CampaignSummary`.
        costs: `measure.compute_costs`; the card's `cost_ms` are quantiles of forward + backward over samples.
        notes: the rest of the card.
    """
    known = costs[costs["error"].isna()]
    total_ms = known["forward_ms"] + known["backward_ms"]
    return {
        "format": CARD_FORMAT,
        "backend": params.backend,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": dict(machine),
        "protocol": params.model_dump(),
        "noise_floor": dict(noise_floor),
        "samples": len(costs),
        "failures": len(costs) - len(known),
        "cost_ms": {name: float(total_ms.quantile(share)) for name, share in _QUANTILES.items()} if len(known) else {},
        **asdict(notes),
    }


def check_device(args: argparse.Namespace, params: ComputeMeasureParams) -> None:
    """Run the checks of `gpu_check.py`; with CPU kernels, only compare these with float64.

    Raises:
        MeasurementError: the campaign cannot run on this device.
    """
    if params.backend != "fbgemm_cuda":
        check = check_kernels(Setup(params, args.batch_size, args.row_scale, args.copy_mib))
        if not check.passed:
            raise MeasurementError(f"{check.name}: {check.found}; {check.remedy}")
        return
    require_devices(params.backend, params.workers)
    command = [sys.executable, gpu_check.__file__]
    command += [f"--arena-gib={args.arena_gib}", f"--batch-size={args.batch_size}"]
    command += [f"--row-scale={args.row_scale}", f"--copy-mib={args.copy_mib}"]
    # A process of its own gives all GPU memory back, and a CUDA error there does not end this one.
    if subprocess.run(command, check=False).returncode == 2:
        raise MeasurementError("this GPU cannot run the campaign; the messages of the checks above say why")


def stored(folder: Path) -> dict[str, partial[pd.DataFrame]]:
    """All records in the folder, by key; each value is a function that reads one."""
    paths = [path for path in sorted(folder.rglob(f"*{_SUFFIX}")) if not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix().removesuffix(_SUFFIX): partial(pd.read_parquet, path) for path in paths}


def store(record: pd.DataFrame, path: Path) -> None:
    """Write a record completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    record.to_parquet(part, index=False)
    os.replace(part, path)


def _device(params: ComputeMeasureParams) -> str:
    return "cuda" if params.backend == "fbgemm_cuda" else "cpu"


if __name__ == "__main__":
    main()
