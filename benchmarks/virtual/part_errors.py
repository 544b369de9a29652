r"""Which part of a step is predicted wrongly, and which predicted gain arrives?

    python benchmarks/virtual/part_errors.py data/virtual data/virtual-16      # after `--env virtual --pipeline truth`

Reads the newest plans and costs of `truth` below every data folder. It prints, for each folder:

`parts`  per part of the step: the mean measured time of a rank; the median ratio of predicted to measured time of a
         plan's mean rank; and how much of the step's error the part explains, which is its mean error divided by the
         mean measured step
`types`  per sharding type: the plans in which it holds at least a tenth of the columns, and the median ratio of their
         predicted to their measured step
`gains`  per rival and part: what `neuroshard_plus` saves in the part, by prediction and by measurement, as shares of
         the rival's measured step; means over tasks, of mean ranks. `waiting` is what a slowest rank adds to it
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from neuroshard_pipeline.evaluation.totals import PARTS

KEYS = ["task_id", "sharder"]
OURS = "neuroshard_plus"
KINDS = ("predicted", "measured")
LEAST_SHARE = 0.1


def newest(folder: Path, name: str) -> pd.DataFrame:
    """The newest version of a data set."""
    return pd.read_parquet(max((folder / "07_model_output" / name).rglob("*.parquet")))


def mean_ranks(costs: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured parts of every plan's mean rank, in ms; `waiting` is the step less all of them."""
    columns = {f"{kind}_{part}_ms": (kind, part) for kind in KINDS for part in (*PARTS, "step")}
    plans = costs.astype(dict.fromkeys(columns, float)).fillna(0.0).groupby(KEYS)[list(columns)].mean()
    plans.columns = pd.MultiIndex.from_tuples(columns.values())
    for kind in KINDS:
        plans[kind, "waiting"] = plans[kind, "step"] - plans[kind][list(PARTS)].sum(axis=1)
    return plans[plans["measured", "step"] > 0]


def parts_table(plans: pd.DataFrame) -> pd.DataFrame:
    """Errors by part."""
    names = [*PARTS, "waiting", "step"]
    predicted, measured = plans["predicted"][names], plans["measured"][names]
    return pd.DataFrame(
        {
            "measured ms": measured.mean(),
            "predicted / measured": (predicted / measured.where(measured > 0)).median(),
            "share of the step": (predicted - measured).mean() / measured["step"].mean(),
        }
    )


def types_table(plans: pd.DataFrame, shards: pd.DataFrame) -> pd.DataFrame:
    """Errors of the step by sharding type."""
    sizes = shards.assign(columns=shards["embedding_dim"]).groupby([*KEYS, "sharding_type"], observed=True)["columns"]
    shares = sizes.sum().unstack(fill_value=0)  # noqa: PD010
    shares = shares.div(shares.sum(axis=1), axis=0).reindex(plans.index)
    ratio = plans["predicted", "step"] / plans["measured", "step"]
    rows = {name: ratio[shares[name] >= LEAST_SHARE] for name in shares}
    return pd.DataFrame({name: {"plans": len(own), "ratio": own.median()} for name, own in rows.items()}).T


def gains_table(plans: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured savings by part and rival."""
    ours = plans.xs(OURS, level="sharder")
    found = {}
    for sharder in plans.index.unique("sharder").drop(OURS):
        rival = plans.xs(sharder, level="sharder").reindex(ours.index).dropna()
        saved = (ours.loc[rival.index] - rival).div(rival["measured", "step"], axis=0)
        found[sharder] = saved.mean()
    return pd.DataFrame(found).T.swaplevel(axis=1)[[*PARTS, "waiting", "step"]]


def main() -> None:
    """Print the tables of all folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    for folder in parser.parse_args().folders:
        costs = newest(folder, "truth_plan_costs.parquet")
        plans = mean_ranks(costs)
        print(f"\n{folder}: {costs['rank'].max() + 1} ranks, {plans.index.unique('task_id').size} tasks")
        print(f"\n{parts_table(plans).round(3).to_string()}")
        print(f"\n{types_table(plans, newest(folder, 'truth_plans.parquet')).round(3).to_string()}")
        print(f"\n{gains_table(plans).mul(100).round(1).to_string()}  (percent)")


if __name__ == "__main__":
    main()
