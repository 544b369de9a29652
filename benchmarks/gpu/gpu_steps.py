"""Times steps of TorchRec under plans, on virtual ranks that take turns on one GPU; needs no Kedro.

    PYTHONPATH=src python benchmarks/gpu/gpu_steps.py PLANS --out FOLDER --seconds 480
    PYTHONPATH=src python benchmarks/gpu/gpu_steps.py --selftest
    PYTHONPATH=src python benchmarks/gpu/gpu_steps.py PLANS --out FOLDER --device cpu       # virtual ranks on cores

PLANS is a folder of plan documents (`torchrec_bridge.plan_json`), one file per plan. The plans of a task are measured
together, tasks in the order of their files. Every step is replayed with every network. FOLDER gets one parquet file per
group of plans as soon as it is measured, with the rows of `truth.steps.measure_steps`.

First it checks that two ranks train small plans as one process does (`gpu_steps_check.py`); if they do not, the exit
code is 2. Plans with replicas are left out if replicas fail this check.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from gpu_steps_check import TOLERANCE, checked, checked_params

from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_from_json, read_document
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import Group, step_groups, task_batches, timed_groups
from neuroshard_pipeline.torchrec_bridge.virtual.networks import Network, modelled_network

START_S = time.monotonic()
#: Weights and the states of their optimizers, relative to weights.
STATES = {"sgd": 1.0, "rowwise_adagrad": 1.1, "adam": 3.0}


def main() -> int:
    """Read the command line, check, and measure; returns the exit code."""
    args = _command_line().parse_args()
    params = StepParams(
        backend="nccl" if args.device == "cuda" else "gloo",
        threads=1,
        timeout_s=args.timeout,
        learning_rate=0.01,
        num_batches=args.batches,
        rounds=args.rounds,
        warmup_steps=args.warmup_steps,
        steps_per_round=args.steps_per_round,
        most_plans_held=args.plans_held,
        seed=args.seed,
    )
    plans = read_plans(args.plans) if args.plans else []
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else "no GPU"
    say(f"torch {torch.__version__}, {gpu}; {len(plans)} plans")
    if not args.no_selftest:
        trained = self_test(params, args.networks, args.selftest or any(map(has_replicas, plans)))
        if not {"table_wise", "row_wise"} <= trained:
            say("the self-test failed")
            return 2
        if "data_parallel" not in trained:
            plans = [plan for plan in plans if not has_replicas(plan)]
    if args.selftest:
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    about = {name: str(value) for name, value in vars(args).items()} | {"gpu": gpu, "torch": torch.__version__}
    (args.out / "_about.json").write_text(json.dumps(about, indent=1))
    measure(plans, params, args)
    return 0


def _command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path, nargs="?", help="folder of plan documents")
    parser.add_argument("--out", type=Path, default=Path("gpu-steps"), help="folder of the results")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument(
        "--networks", nargs="+", default=["h100-ib400"], help="keys of lab.networks, or ethernet-<Gbit>"
    )
    parser.add_argument("--seconds", type=float, default=480.0, help="after this time, no further task starts")
    parser.add_argument("--plans-held", type=int, default=4, help="plans whose modules the ranks hold at a time")
    parser.add_argument("--gpu-gib", type=float, default=60.0, help="memory for the weights of plans held at a time")
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--steps-per-round", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batches", type=int, default=2, help="distinct batches of a task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=150.0, help="seconds for a group of plans")
    parser.add_argument("--selftest", action="store_true", help="only check")
    parser.add_argument("--no-selftest", action="store_true", help="do not check")
    return parser


def say(text: str) -> None:
    """Print a line with the time since the start."""
    print(f"{time.monotonic() - START_S:6.1f} s  {text}", flush=True)


def read_plans(folder: Path) -> list[Plan]:
    """The plans of all documents, without those whose tables are in host memory or have tiers."""
    plans = [plan_from_json(read_document(path)) for path in sorted(folder.rglob("*.json"))]
    return [plan for plan in plans if not plan.tiers and not any(t.is_in_host_memory for t in plan.task.tables)]


def has_replicas(plan: Plan) -> bool:
    """Whether a table of the plan is data-parallel."""
    return any(shard.sharding_type == "data_parallel" for shard in plan.shards)


def networks_of(names: Sequence[str], ranks_per_host: int) -> dict[str, Network]:
    """The modelled networks between hosts of so many ranks, by name."""
    return {name: modelled_network(network_preset(name, ranks_per_host)) for name in names}


def self_test(params: StepParams, names: Sequence[str], with_replicas: bool) -> set[str]:
    """Check small plans, and return the names of those that train correctly."""
    frame = checked(checked_params(params), networks_of(names, 2), with_replicas)
    trained = set()
    for sharder, own in frame.groupby("sharder", sort=False):
        if own["error"].notna().any():
            say(f"selftest {sharder}: {own['error'].iloc[0]}")
            continue
        errors = own[["output_error", "weight_error"]].max()
        trained |= {str(sharder)} if (errors < TOLERANCE).all() else set()
        verdict = "pass" if sharder in trained else "FAIL"
        say(f"selftest {sharder}: {verdict}, relative errors {errors.round(8).to_dict()}, {summary(own)}")
    return trained


def measure(plans: Sequence[Plan], params: StepParams, args: argparse.Namespace) -> None:
    """Measure, store and print all groups of plans for which there is time."""
    groups = groups_in_time(plans, params, args)
    number = 0
    for (_, per_host), own in groupby(groups, key=lambda group: layout(group.plans[0])):
        for group, frame in timed_groups(own, params, networks_of(args.networks, per_host)):
            task_id = group.plans[0].task.task_id
            frame.to_parquet(args.out / f"{number:04d}.parquet", index=False)
            number += 1
            for sharder, steps in frame.groupby("sharder", sort=False):
                failed = steps["error"].notna().any()
                say(f"{task_id} {sharder}: {steps['error'].iloc[0] if failed else summary(steps)}")
    say(f"{number} groups are in {args.out}")


def layout(plan: Plan) -> tuple[int, int]:
    """The numbers of ranks, and of ranks per host."""
    return plan.task.world_size, plan.task.ranks_per_host


def groups_in_time(plans: Sequence[Plan], params: StepParams, args: argparse.Namespace) -> Iterator[Group]:
    """The groups of the tasks that start in time; the batches of the next task are drawn during one task."""
    tasks: dict[str, list[Plan]] = {}
    for plan in plans:
        tasks.setdefault(plan.task.task_id, []).append(plan)
    ordered = sorted(tasks.values(), key=lambda own: layout(own[0]))
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(task_batches, ordered[0], params) if ordered else None
        for number, own in enumerate(ordered):
            batches: Mapping[str, Any] = drawn.result()  # type: ignore[union-attr]
            if number + 1 < len(ordered):
                drawn = pool.submit(task_batches, ordered[number + 1], params)
            if time.monotonic() - START_S > args.seconds:
                say(f"{len(ordered) - number} of {len(ordered)} tasks are left out for lack of time")
                return
            yield from step_groups(own, batches, params.model_copy(update={"most_plans_held": plans_held(own, args)}))


def plans_held(plans: Sequence[Plan], args: argparse.Namespace) -> int:
    """The number of plans of a task that are held at a time."""
    most_bytes = max(sum(shard.weight_bytes for shard in plan.shards) for plan in plans)
    fitting = args.gpu_gib * 2**30 / (most_bytes * STATES.get(plans[0].task.optimizer, 3.0))
    return max(1, min(args.plans_held, int(fitting)))


def summary(steps: pd.DataFrame) -> str:
    """Means over steps of the largest times of a rank, by network, and the median of the ranks' computation."""
    texts = []
    for network, own in steps.groupby("network", sort=False):
        of_step = own.groupby(["round", "step"])[["step_ms", "computed_ms"]].max()
        means = of_step.mean()
        texts.append(f"{network} step {means['step_ms']:.3f} ms, computed {means['computed_ms']:.3f} ms")
    return "; ".join([*texts, f"steps: {len(of_step)}"])


if __name__ == "__main__":
    sys.exit(main())
