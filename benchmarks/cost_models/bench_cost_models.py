"""Accuracy of the cost models: ours, the paper's network and two baselines on the same data and the same splits.

Reads the newest version of every dataset that it needs from the catalog. Prints, part by part, tables and whether the
aims of the project are met. Parts:

- `compute`: all models on held-out samples, on the shards that searches chose, and on every kind of evaluation samples:
  tables, table sets and batch sizes without training samples, row shards, replicas. Our model and the paper's network
  are trained twice: on this project's mix of samples, which is far wider than the paper's, and on samples of the
  paper's kind only (batch size 512, fp32, SGD, generated tables).
- `learning`: error by number of samples; also written to `cost_model_learning_curve.html` in the folder `--out`
- `comm`: error on measured collectives and on the modelled cluster, for world sizes with and without training samples

    .venv/bin/kedro run
    python benchmarks/cost_models/bench_cost_models.py [--env base] [--data-root …] [--seeds 3] [--parts compute,comm]

It takes six to eight minutes per seed for 5,600 compute samples, on 2 cores with other load. With `--samples` and
`--epochs` it is a quick check of the program, and its figures say nothing about the models.
"""

from __future__ import annotations

import argparse
import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from bench_comm_models import SETTINGS, comm_figures, draw, order_blind_floors
from cost_model_baselines import BASELINES
from cost_model_fits import (
    LEARNING_SHARES,
    Baseline,
    Ours,
    Paper,
    Row,
    Tables,
    fit_comm_models,
    fit_everywhere,
    fit_on_paper_samples,
    fit_share,
)
from cost_model_inputs import CommInputs, ComputeInputs, comm_inputs, compute_inputs
from cost_model_tables import introduction, report_comm, report_compute, report_learning
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.measurement.topology import topology_costs
from neuroshard_pipeline.tables.frames import comm_samples_from_frame
from neuroshard_pipeline.workers import WorkerParams, map_items

PARTS = ("compute", "learning", "comm")


@dataclass(frozen=True)
class Job:
    """What a process does at a time: fit one or several models, or estimate the least errors of `order_blind_floors`.

    Attributes:
        part: one of `PARTS`.
        name: text of the progress line.
        run: does the work, and returns its rows of the result tables, by the name of the table.
    """

    part: str
    name: str
    run: Callable[[], Tables]


def main() -> None:
    """Print every part as soon as its last job is done."""
    arguments = _arguments()
    root = Path(__file__).resolve().parents[2]
    bootstrap_project(root)
    overrides = {"data_root": arguments.data_root} if arguments.data_root else {}
    with KedroSession.create(root, env=arguments.env, runtime_params=overrides) as session:
        context = session.load_context()
        catalog, params = context.catalog, context.params
    compute, comm = compute_inputs(catalog), comm_inputs(catalog)
    seeds, parts = range(arguments.seeds), arguments.parts
    if arguments.samples:
        order = np.random.default_rng(0).permutation(len(compute.data.samples))
        compute = replace(compute, data=compute.data.take(np.sort(order[: arguments.samples])))
    schedule = {"epochs": arguments.epochs} if arguments.epochs else {}
    jobs = list(compute_jobs(compute, params["train"]["compute"].model_copy(update=schedule), seeds, parts))
    if "comm" in parts:
        jobs += comm_jobs(comm, params, catalog.load("augment.table_pool"), seeds)
    jobs.sort(key=lambda job: PARTS.index(job.part))
    print(introduction(compute, comm), flush=True)
    report = {
        "compute": partial(report_compute, compute.floors["total"]),
        "learning": partial(report_learning, compute.floors["total"], arguments.out),
        "comm": partial(report_comm, comm.floors),
    }
    aims = [aim for part, tables in finished_parts(jobs, arguments.workers) for aim in report[part](tables)]
    print(f"\n{sum(aim.gap <= 0 for aim in aims)} of {len(aims)} aims met; means over {arguments.seeds} seeds")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="base", help="configuration environment, as for kedro run")
    parser.add_argument("--data-root", help="data folder of the run, if not that of the environment")
    parser.add_argument("--seeds", type=int, default=3, help="number of splits and initial weights to average over")
    parser.add_argument("--parts", type=_parts, default=PARTS, help=f"some of {','.join(PARTS)}")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread")
    parser.add_argument("--samples", type=int, help="compute samples for a quick check; all by default")
    parser.add_argument("--epochs", type=int, help="epochs of our compute model for a quick check")
    parser.add_argument("--out", type=Path, default=Path("data/08_reporting"), help="folder of the figure")
    return parser.parse_args()


def _parts(text: str) -> tuple[str, ...]:
    asked = tuple(text.split(","))
    if set(asked) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{text!r}: parts are {', '.join(PARTS)}")
    return asked


def compute_jobs(inputs: ComputeInputs, params: Any, seeds: Sequence[int], parts: Sequence[str]) -> Iterator[Job]:
    """Fits of compute models; a fit that two parts need belongs to the first of them."""
    for seed in seeds:
        ours = params.model_copy(update={"seed": seed})
        for network in (Ours(ours), Paper(ours)):
            name = f"{network.name}, seed {seed}"
            for part in [part for part in ("compute", "learning") if part in parts][:1]:
                yield Job(part, f"{name}, all samples", partial(fit_everywhere, inputs, network, ours))
            if "compute" in parts:
                run = partial(fit_on_paper_samples, inputs, network, ours)
                yield Job("compute", f"{name}, samples of the paper's kind", run)
            for share in reversed(LEARNING_SHARES) if "learning" in parts else ():
                run = partial(fit_share, inputs.data, network, ours, share)
                yield Job("learning", f"{name}, {share:.0%} of the samples", run)
        for baseline in BASELINES if "compute" in parts else ():
            run = partial(fit_everywhere, inputs, Baseline(baseline, seed), ours)
            yield Job("compute", f"{baseline}, seed {seed}", run)


def comm_jobs(inputs: CommInputs, params: dict[str, Any], pool: pd.DataFrame, seeds: Sequence[int]) -> Iterator[Job]:
    """Fits of communication models to measured collectives and to the modelled cluster, and `order_blind_floors`."""
    settings = SETTINGS["topology"]
    drawn = draw(pool, params["augment"]["comm_samples"], settings)
    costs = topology_costs(comm_samples_from_frame(drawn), params["topology"].network)
    origin = {"hardware": {"topology": params["topology"].facts}}
    yield Job("comm", "floor of an order-blind model", partial(_blind, drawn, params["topology"].network))
    for seed in seeds:
        ours = params["train"]["comm"].model_copy(update={"seed": seed})
        yield Job("comm", f"measured collectives, seed {seed}", partial(fit_comm_models, inputs, ours))
        run = partial(_topology, drawn, costs, ours, settings, origin)
        yield Job("comm", f"modelled cluster, seed {seed}", run)


def _topology(*inputs: Any) -> Tables:
    return {"topology": comm_figures(*inputs)}


def _blind(drawn: pd.DataFrame, topology: NetworkParams) -> Tables:
    return {"order blind": order_blind_floors(drawn, topology)}


def finished_parts(jobs: Sequence[Job], workers: int) -> Iterator[tuple[str, dict[str, list[Row]]]]:
    """Run jobs in processes; yield every part when it is complete, with all rows so far."""
    left = [job.part for job in jobs]
    tables: dict[str, list[Row]] = defaultdict(list)
    started = time.perf_counter()
    executor = WorkerParams(engine="local", address=None, workers=workers, timeout_s=900)
    for count, outcome in enumerate(map_items(_run, jobs, executor), start=1):
        job = jobs[outcome.index]
        if outcome.value is None:
            raise CostModelError(f"{job.part}: {job.name} failed: {outcome.error}")
        for name, rows in outcome.value.items():
            tables[name] += rows
        print(f"{time.perf_counter() - started:4.0f} s  {count}/{len(jobs)}  {job.part}: {job.name}", flush=True)
        left.remove(job.part)
        if job.part not in left:
            yield job.part, tables


def _run(job: Job) -> Tables:
    """Run a job in a worker with one thread and without a progress bar."""
    torch.set_num_threads(1)
    with redirect_stderr(io.StringIO()):
        return job.run()


if __name__ == "__main__":
    import bench_cost_models  # so that workers can import the functions of their jobs

    bench_cost_models.main()
