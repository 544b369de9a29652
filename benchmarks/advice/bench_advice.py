r"""Do measured gains agree with those that `advise` predicts?

    python benchmarks/advice/bench_advice.py time                       # advice and its seconds; 3 minutes
    python benchmarks/advice/bench_advice.py gains --data data          # after `make run`, quiet cores; 20 minutes

`time` prints the advice for MLPerf DLRM-v2 on 16 H100, for 96 tables with published statistics on 8 H100, and for the
tasks of `make run`.

`gains` advises tasks of `make run`, and measures the steps of today's plan and of the plans of all what-ifs that can
run here: half-precision links, one rank in place of two, other batches, and smaller tables. Every what-if has batches
of its own, drawn from the profiles of its tables. Plans take turns in several passes, each with new modules in a new
order; a measured step is the mean over passes of the lower quartile of a plan's steps. Today's plan is measured twice.
It prints, for each task, Kendall's tau of predicted and measured gains, whether the best what-if is among the two that
are really best, and the relative error of gains, also the one that two measurements of equal plans would have. Gains
are shares of today's step, because the machine may be slower or faster than it was when the cost models were measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

import neuroshard_pipeline as ns
from neuroshard_pipeline.advice import Line
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.report.advice_page import advice_text
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import measure_steps, task_batches
from neuroshard_pipeline.torchrec_bridge.virtual.networks import modelled_network

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "search"))
PARAMS = StepParams(
    backend="gloo", threads=1, timeout_s=300, learning_rate=0.01, num_batches=4, rounds=3,
    warmup_steps=1, steps_per_round=4, most_plans_held=18, seed=0,
)  # fmt: skip
PASSES, QUANTILE, AGAIN = 6, 0.25, "today again"
#: The network between virtual ranks.
VIRTUAL = "ethernet-25"
#: What-ifs that two real ranks can run.
MEASURED = ("precision", "ranks", "batch", "narrower embeddings", "half-precision weights", "fewer ids per bag")


def tasks_of_run(data: Path, count: int) -> list[ns.ShardingTask]:
    """The first sharding tasks of the newest run below `data`."""
    newest = max((data / "03_primary" / "sharding_tasks.parquet").glob("*/*.parquet"))
    return tasks_from_frame(pd.read_parquet(newest))[:count]


def measurable(line: Line) -> bool:
    """Whether two ranks of this machine can run the plan of a line."""
    return line.plan is not None and line.what_if.topic in MEASURED and line.ranks <= 2


def measured_ms(lines: list[Line], is_virtual: bool) -> dict[str, float]:
    """Measured step of every line, by name, for as many samples as today's step has."""
    named = [*((line.what_if.name, line.plan) for line in lines), (AGAIN, lines[0].plan)]
    plans = [replace(plan, sharder="advice", task=replace(plan.task, task_id=name)) for name, plan in named]
    batches, rng = task_batches(plans, PARAMS), np.random.default_rng(0)
    orders = [[plans[at] for at in rng.permutation(len(plans))] for _ in range(PASSES)]
    networks = {VIRTUAL: modelled_network(network_preset(VIRTUAL, 2))} if is_virtual else None
    passes = [measure_steps(order, batches, PARAMS, networks=networks) for order in orders]
    frame = pd.concat([steps.assign(turn=number) for number, steps in enumerate(passes)]).query("timed")
    slowest = frame.groupby(["task_id", "turn", "step"])["step_ms"].max()
    step_ms = slowest.groupby(["task_id", "turn"]).quantile(QUANTILE).groupby("task_id").mean()
    share = {line.what_if.name: lines[0].samples / line.samples for line in lines}
    return {name: float(step_ms[name]) * share.get(name, 1.0) for name, _ in named}


def gains(data: Path, count: int, is_virtual: bool) -> None:
    """Predicted beside measured gains of every task, and their agreement."""
    models, rows, taus, hits, noise = ns.load_cost_models(data / "06_models"), [], [], [], []
    for task in tasks_of_run(data, count):
        advice = ns.advise(task, models, pairs=0)
        if advice.today.plan is None:
            continue
        lines = [line for line in advice.lines if measurable(line)]
        found = measured_ms([advice.today, *lines], is_virtual)
        today_ms, now_ms = advice.today.step_ms, (found["today"] + found[AGAIN]) / 2
        noise.append(abs(found["today"] / found[AGAIN] - 1))
        table = pd.DataFrame(
            {
                "what if": [line.what_if.name for line in lines],
                "predicted": [line.gain_ms / today_ms for line in lines],
                "measured": [1 - found[line.what_if.name] / now_ms for line in lines],
                "low": [line.low_gain_ms / today_ms for line in lines],
                "high": [line.high_gain_ms / today_ms for line in lines],
            }
        )
        taus.append(float(kendalltau(table["predicted"], table["measured"]).statistic))
        best = table["measured"].nlargest(2).index
        hits.append(bool(table["predicted"].idxmax() in best))
        rows.append(table.assign(task=task.task_id))
        today = f"today {today_ms:.2f} ms predicted, {now_ms:.2f} ms measured"
        print(
            f"\n{task.task_id}: {today}; tau {taus[-1]:.2f}; best among two: {hits[-1]}\n{table.round(3).to_string()}"
        )
    of_all = pd.concat(rows)
    errors = (of_all["predicted"] / of_all["measured"] - 1).abs()
    large = of_all["measured"].abs() > 0.05
    inside = of_all["measured"].between(of_all["low"], of_all["high"])
    print(
        f"\n{len(taus)} tasks: tau {np.mean(taus):.2f} (mean), {min(taus):.2f} (least); best among the two best: ",
        end="",
    )
    print(
        f"{sum(hits)} of {len(hits)}; median error of a gain {errors.median():.0%}, of those above 5 % of the step ",
        end="",
    )
    print(f"{errors[large].median():.0%} ({large.sum()} of {len(of_all)}); in the interval {inside.mean():.0%}")
    of_noise = np.median(noise) / of_all["measured"].abs()[large]
    print(
        f"two measurements of one plan differ by {np.median(noise):.1%} (median; at most {max(noise):.1%}), which is "
        f"{of_noise.median():.0%} of a gain above 5 % in the median"
    )


def times(data: Path, count: int, is_virtual: bool) -> None:  # noqa: ARG001
    """Seconds of an advice."""
    from whole_cost_tasks import suite_tasks

    tables, h100 = ns.read_tables(ROOT / "data" / "01_raw" / "mlperf_dlrm_v2.csv"), ns.load_cost_models("h100")
    tasks = [(ns.ShardingTask(tables, 16, 65536, 64 * 2**30, "rowwise_adagrad", "MLPerf DLRM-v2, 16 H100"), h100)]
    tasks += [(replace(next(suite_tasks("published", 8, 1)), task_id="published statistics, 8 H100"), h100)]
    if (data / "06_models").is_dir():
        tasks += [(task, ns.load_cost_models(data / "06_models")) for task in tasks_of_run(data, count)]
    for task, models in tasks:
        start, cpu = time.perf_counter(), time.process_time()
        advice = ns.advise(task, models)
        seconds = f"{time.perf_counter() - start:.0f} s, {time.process_time() - cpu:.0f} s of CPU time"
        print(f"\n{task.task_id}: {len(advice.lines)} what-ifs in {seconds}\n{advice_text(advice)}", flush=True)


def main() -> None:
    """Answer the question of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["time", "gains"])
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="data folder of a finished run")
    parser.add_argument("--tasks", type=int, default=6, help="number of tasks of the run")
    parser.add_argument("--virtual", action="store_true", help=f"virtual ranks on {VIRTUAL}, for busy cores")
    arguments = parser.parse_args()
    {"time": times, "gains": gains}[arguments.question](arguments.data, arguments.tasks, arguments.virtual)


if __name__ == "__main__":
    main()
