"""How good the cost models are: ours, the paper's network and two baselines on the same data and the same splits.

Reads the newest versions of a run from the catalog and prints, part by part, tables and what the aims of the project
make of them. Parts: `compute` (all models, held out, on the shards that searches chose, on tables, table sets and
batch sizes that no model was trained on), `learning` (error against number of samples; written to
`cost_model_learning_curve.html` in the folder `--out`), `comm` (measured collectives; and the modelled cluster, with
world sizes that no model was trained on), `ablation` (self-distillation on wrong labels).

    .venv/bin/kedro run
    .venv/bin/python benchmarks/bench_cost_models.py [--env base] [--data-root data] [--seeds 3] [--parts compute,comm]

Refinement has a benchmark of its own, `bench_refine.py`. Six to eight minutes per seed for 5,600 compute samples, on 2
cores that other work shares.
"""

from __future__ import annotations

import argparse
import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from bench_comm_models import SETTINGS, draw, judged, order_blind_floors
from cost_model_fits import (
    ABLATION,
    LEARNING_SHARES,
    PAPER,
    PLAIN,
    WRONG_SHARES,
    Row,
    Tables,
    fit_ablation,
    fit_baseline,
    fit_comm_models,
    fit_network,
    fit_share,
)
from cost_model_inputs import CommInputs, ComputeInputs, comm_inputs, compute_inputs
from cost_model_tables import introduction, tell_ablation, tell_comm, tell_compute, tell_learning
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from neuroshard_pipeline.cost_models.baselines import BASELINES
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.measurement import TopologyParams
from neuroshard_pipeline.measurement.topology import topology_costs
from neuroshard_pipeline.tables import comm_samples_from_frame
from neuroshard_pipeline.workers import WorkerParams, map_items

PARTS = ("compute", "learning", "comm", "ablation")


@dataclass(frozen=True)
class Job:
    """Something to fit in one process.

    Attributes:
        part: of `PARTS`, which it belongs to.
        name: for the progress line.
        run: gives rows by table.
    """

    part: str
    name: str
    run: Callable[[], Tables]


def main() -> None:
    """Print every part as soon as its last job is done."""
    arguments = _arguments()
    root = Path(__file__).resolve().parents[1]
    bootstrap_project(root)
    overrides = {"data_root": arguments.data_root} if arguments.data_root else {}
    with KedroSession.create(root, env=arguments.env, runtime_params=overrides) as session:
        context = session.load_context()
        catalog, params = context.catalog, context.params
    compute, comm = compute_inputs(catalog), comm_inputs(catalog)
    seeds, parts = range(arguments.seeds), arguments.parts
    jobs = list(compute_jobs(compute, params["train"]["compute"], seeds, parts))
    if "comm" in parts:
        jobs += comm_jobs(comm, params, catalog.load("augment.table_pool"), seeds)
    jobs.sort(key=lambda job: PARTS.index(job.part))
    print(introduction(compute, comm), flush=True)
    told = {
        "compute": partial(tell_compute, compute.floors["total"]),
        "learning": partial(tell_learning, compute.floors["total"], arguments.out),
        "comm": partial(tell_comm, comm.floors),
        "ablation": tell_ablation,
    }
    aims = [aim for part, tables in finished_parts(jobs, arguments.workers) for aim in told[part](tables)]
    print(f"\n{sum(aim.gap <= 0 for aim in aims)} of {len(aims)} aims met; means over {arguments.seeds} seeds")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="base", help="configuration environment, as for kedro run")
    parser.add_argument("--data-root", help="where the run kept its data, if not in the environment's place")
    parser.add_argument("--seeds", type=int, default=3, help="splits and initial weights to average over")
    parser.add_argument("--parts", type=_parts, default=PARTS, help=f"some of {','.join(PARTS)}")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread")
    parser.add_argument("--out", type=Path, default=Path("data/08_reporting"), help="folder of the figure")
    return parser.parse_args()


def _parts(text: str) -> tuple[str, ...]:
    asked = tuple(text.split(","))
    if set(asked) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{text!r}: parts are {', '.join(PARTS)}")
    return asked


def compute_jobs(inputs: ComputeInputs, params: Any, seeds: Sequence[int], parts: Sequence[str]) -> Iterator[Job]:
    """Everything about the compute model; a fit that two parts need is made for the first of them."""
    for seed in seeds:
        ours = params.model_copy(update={"seed": seed})
        for network in (ours, ours.model_copy(update=PAPER)):
            name = f"{network.architecture}, seed {seed}"
            for part in [part for part in ("compute", "learning") if part in parts][:1]:
                yield Job(part, f"{name}, all samples", partial(fit_network, inputs, network))
            for share in reversed(LEARNING_SHARES) if "learning" in parts else ():
                run = partial(fit_share, inputs.data, network, share)
                yield Job("learning", f"{name}, {share:.0%} of the samples", run)
        for baseline in BASELINES if "compute" in parts else ():
            yield Job("compute", f"{baseline}, seed {seed}", partial(fit_baseline, inputs, ours, baseline))
        for kind, wrong in product(ABLATION, WRONG_SHARES) if "ablation" in parts else ():
            if (kind, wrong) != (PLAIN, 0.0) or "learning" not in parts:
                run = partial(fit_ablation, inputs.data, ours, kind, wrong)
                yield Job("ablation", f"{kind}, {wrong:.0%} wrong, seed {seed}", run)


def comm_jobs(inputs: CommInputs, params: dict[str, Any], pool: pd.DataFrame, seeds: Sequence[int]) -> Iterator[Job]:
    """Measured collectives, and the modelled cluster."""
    settings = SETTINGS["topology"]
    drawn = draw(pool, params["augment"]["comm_samples"], settings)
    costs = topology_costs(comm_samples_from_frame(drawn), params["topology"])
    origin = {"hardware": {"topology": params["topology"].model_dump()}}
    yield Job("comm", "what an order-blind model can reach", partial(_blind, drawn, params["topology"]))
    for seed in seeds:
        ours = params["train"]["comm"].model_copy(update={"seed": seed})
        yield Job("comm", f"measured collectives, seed {seed}", partial(fit_comm_models, inputs, ours))
        run = partial(_topology, drawn, costs, ours, settings, origin)
        yield Job("comm", f"modelled cluster, seed {seed}", run)


def _topology(*inputs: Any) -> Tables:
    return {"topology": judged(*inputs)}


def _blind(drawn: pd.DataFrame, topology: TopologyParams) -> Tables:
    return {"order blind": order_blind_floors(drawn, topology)}


def finished_parts(jobs: Sequence[Job], workers: int) -> Iterator[tuple[str, dict[str, list[Row]]]]:
    """Run jobs in processes; yield every part when it is complete, with all rows that there are until then."""
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
    """In a worker: one thread, and no progress bar into the others' lines."""
    torch.set_num_threads(1)
    with redirect_stderr(io.StringIO()):
        return job.run()


if __name__ == "__main__":
    import bench_cost_models  # so that workers can import what they are sent

    bench_cost_models.main()
