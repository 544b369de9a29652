"""Computes sharding plans for embedding tables in seconds: NeuroShard ("Pre-train and Search") as a Kedro project.

    import neuroshard_pipeline as ns

    tables = ns.read_tables("data/01_raw/mlperf_dlrm_v2.csv")
    models = ns.load_cost_models("data/06_models")
    task = ns.ShardingTask(tables, world_size=8, batch_size=65536, memory_bytes=80 * 2**30)
    print(ns.shard(task, models).explain())

The packages, in the order of the data flow: `tables` (tables, shards and tasks), `augment` (random samples to measure,
and random tasks), `measurement` (measured costs), `lab` (modelled costs), `cost_models` (predicted costs), `search` and
`sharders` (plans), `replanning` (the plan after the one that runs), `advice` (what would make a step faster),
`evaluation` (measured and compared plans), `torchrec_plan` and `torchrec_bridge` (plans for TorchRec), `report` (the
HTML report). `workers` runs processes for them. `pipelines`, `datasets`, `hooks` and `cli` connect them with Kedro.
`import neuroshard_pipeline` does not import Kedro, TorchRec or FBGEMM.
"""

import os

from neuroshard_pipeline.advice import Advice, advise
from neuroshard_pipeline.cost_models import CostModels, load_cost_models
from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.replanning import Replan, replan
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.sharders.policies.policy import Policies, load_policies
from neuroshard_pipeline.sharders.registry import SHARDERS, ordered_by_links, shard
from neuroshard_pipeline.tables.bandwidth_file import read_bandwidths
from neuroshard_pipeline.tables.constraint_file import read_constraints
from neuroshard_pipeline.tables.constraints import Constraints, TableConstraint
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import ShardingTask

__version__ = "0.1.0"

__all__ = [
    "SHARDERS",
    "Advice",
    "Constraints",
    "CostModels",
    "NeuroShardError",
    "Plan",
    "PlanCost",
    "Policies",
    "Replan",
    "Shard",
    "ShardingTask",
    "Table",
    "TableConstraint",
    "advise",
    "load_cost_models",
    "load_policies",
    "ordered_by_links",
    "read_bandwidths",
    "read_constraints",
    "read_tables",
    "replan",
    "shard",
]

# Kedro's telemetry plugin is a dependency of Kedro and enabled by default; this project sends no telemetry.
os.environ.setdefault("KEDRO_DISABLE_TELEMETRY", "1")
