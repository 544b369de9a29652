r"""Which part of a step is predicted wrongly, and which predicted gain arrives?

    python benchmarks/virtual/part_errors.py data/virtual data/virtual-16      # after `--env virtual --pipeline truth`

Reads the newest plans and costs of `truth` below every data folder. The parts are those that the clock of a rank tells
apart: `lookups`, `input dist`, and the `rest` of the slowest rank's step, which is the output dist, its backward, the
module's own work and all waits. It prints, for each folder:

- by part: the mean measured ms; the median ratio of predicted to measured ms; and the mean error divided by the mean
  measured step, so that the parts' shares add up to the error of the step;
- by sharding type: the plans in which it holds at least a tenth of the columns, and the median ratio of their predicted
  to their measured step;
- by rival: what `neuroshard_plus` costs compared with it (mean over tasks of the ratio, minus 1, in percent), measured
  with a 95 % bootstrap interval, and predicted; beside it, the largest of the measured ratios;
- the median error of predicted steps, that of predicted ratios to `neuroshard_plus`, and Kendall's tau (mean of tasks);
- by rival and part: what `neuroshard_plus` saves, by prediction and by measurement, in percent of the rival's measured
  step; means over tasks.

Lookups and input dist are means over ranks. A measured input dist contains waiting for the rank that receives most ids;
by prediction, this wait is in the `rest`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from neuroshard_pipeline.cost_models.metrics import kendall_tau
from neuroshard_pipeline.evaluation.comparison import Bootstrap

KEYS = ["task_id", "sharder"]
OURS = "neuroshard_plus"
KINDS = ("predicted", "measured")
SPANS = {"lookups": "compute", "input dist": "input_dist", "step": "step"}
LEAST_SHARE = 0.1
BOOTSTRAP = Bootstrap(0.95, 10_000, 0)


def newest(folder: Path, name: str) -> pd.DataFrame:
    """The newest version of a data set."""
    versions = sorted((folder / "07_model_output" / name).rglob("*.parquet"))
    if not versions:
        raise SystemExit(f"{folder}: no {name}; run first: kedro run --env virtual --pipeline truth")
    return pd.read_parquet(versions[-1])


def parts_of(costs: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured parts of every measured plan, in ms."""
    columns = {f"{kind}_{part}_ms": (kind, name) for kind in KINDS for name, part in SPANS.items()}
    plans = costs.astype(dict.fromkeys(columns, float)).groupby(KEYS)[list(columns)].mean()
    plans.columns = pd.MultiIndex.from_tuples(columns.values())
    for kind in KINDS:
        plans[kind, "rest"] = plans[kind, "step"] - plans[kind, "lookups"] - plans[kind, "input dist"]
    return plans.dropna()


def parts_table(plans: pd.DataFrame) -> pd.DataFrame:
    """Errors by part."""
    predicted, measured = (plans[kind][["lookups", "input dist", "rest", "step"]] for kind in KINDS)
    return pd.DataFrame(
        {
            "measured ms": measured.mean(),
            "predicted / measured": (predicted / measured).median(),
            "error, share of the step": (predicted - measured).mean() / measured["step"].mean(),
        }
    )


def types_table(plans: pd.DataFrame, shards: pd.DataFrame) -> pd.DataFrame:
    """Errors of the step by sharding type."""
    columns = shards.groupby([*KEYS, "sharding_type"], observed=True)["embedding_dim"].sum().unstack(fill_value=0)  # noqa: PD010
    shares = columns.div(columns.sum(axis=1), axis=0).reindex(plans.index)
    ratio = plans["predicted", "step"] / plans["measured", "step"]
    own = {name: ratio[shares[name] >= LEAST_SHARE] for name in shares}
    return pd.DataFrame({name: {"plans": len(of), "predicted / measured": of.median()} for name, of in own.items()}).T


def ratios_of(plans: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured step of `neuroshard_plus`, divided by that of every rival on the same task."""
    steps = plans.xs("step", axis=1, level=1)
    ours = steps.xs(OURS, level="sharder").reindex(steps.index.get_level_values("task_id")).set_index(steps.index)
    return (ours / steps).drop(index=OURS, level="sharder").dropna()


def ratios_table(ratios: pd.DataFrame) -> pd.DataFrame:
    """What `neuroshard_plus` costs compared with every rival, in percent."""
    found = {}
    for sharder, of in ratios.groupby("sharder"):
        mean = BOOTSTRAP.mean(of["measured"].to_numpy())
        shares = {"measured": mean.value, "low": mean.low, "high": mean.high, "predicted": of["predicted"].mean()}
        found[sharder] = {name: 100 * (ratio - 1) for name, ratio in (shares | {"worst": of["measured"].max()}).items()}
        found[sharder]["tasks"] = len(of)
    return pd.DataFrame(found).T


def accuracy_table(plans: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """Median errors of predicted steps and of predicted ratios, and the mean tau of the tasks."""
    steps = plans.xs("step", axis=1, level=1)
    off = {"step": steps["predicted"] / steps["measured"], "ratio": ratios["predicted"] / ratios["measured"]}
    found = {f"error of a {name}": (of - 1).abs().median() for name, of in off.items()}
    taus = [kendall_tau(of["measured"], of["predicted"]) for _, of in steps.groupby("task_id")]
    return pd.DataFrame({"value": found | {"tau": sum(taus) / len(taus)}})


def gains_table(plans: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured savings by part and rival."""
    ours, found = plans.xs(OURS, level="sharder"), {}
    for sharder in plans.index.unique("sharder").drop(OURS):
        rival = plans.xs(sharder, level="sharder").reindex(ours.index).dropna()
        found[sharder] = (ours.loc[rival.index] - rival).div(rival["measured", "step"], axis=0).mean()
    return 100 * pd.DataFrame(found).T.swaplevel(axis=1)[["lookups", "input dist", "rest", "step"]]


def main() -> None:
    """Print the tables of all folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    for folder in parser.parse_args().folders:
        costs = newest(folder, "truth_plan_costs.parquet")
        plans = parts_of(costs)
        ratios, shards = ratios_of(plans), newest(folder, "truth_plans.parquet")
        tables = [parts_table(plans), types_table(plans, shards), ratios_table(ratios), accuracy_table(plans, ratios)]
        print(f"\n{folder}: {costs['rank'].max() + 1} ranks, {plans.index.unique('task_id').size} tasks")
        for table, digits in zip([*tables, gains_table(plans)], (3, 3, 1, 3, 1), strict=True):
            print(f"\n{table.round(digits).to_string()}")


if __name__ == "__main__":
    main()
