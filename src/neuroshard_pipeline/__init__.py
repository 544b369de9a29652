"""NeuroShard, "Pre-train and Search", as a Kedro project: sharding plans for embedding tables in seconds.

    import neuroshard_pipeline as ns

    tables = ns.read_tables("data/01_raw/mlperf_dlrm_v2.csv")
    models = ns.load_cost_models("data/06_models")
    task = ns.ShardingTask(tables, world_size=8, batch_size=65536, memory_bytes=80 * 2**30)
    print(ns.shard(task, models).explain())

The rooms: `tables` (what is sharded), `measurement` (what it costs), `cost_models` (what it would cost), `search` and
`sharders` (where it goes), `torchrec_bridge` (how it trains), `report` (what a person sees). `pipelines`, `datasets`,
`hooks` and `cli` wire them together with Kedro; nothing imported here knows Kedro, TorchRec or FBGEMM.
"""

import os

from neuroshard_pipeline.cost_models import CostModels, load_cost_models
from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.sharders.policies.policy import Policies, load_policies
from neuroshard_pipeline.sharders.registry import SHARDERS, ordered_by_links, shard
from neuroshard_pipeline.tables import (
    Constraints,
    Shard,
    ShardingTask,
    Table,
    TableConstraint,
    read_bandwidths,
    read_constraints,
    read_tables,
)

__version__ = "0.1.0"

__all__ = [
    "SHARDERS",
    "Constraints",
    "CostModels",
    "NeuroShardError",
    "Plan",
    "PlanCost",
    "Policies",
    "Shard",
    "ShardingTask",
    "Table",
    "TableConstraint",
    "load_cost_models",
    "load_policies",
    "ordered_by_links",
    "read_bandwidths",
    "read_constraints",
    "read_tables",
    "shard",
]

# Kedro's telemetry plugin is a dependency of Kedro and on unless told otherwise; this project sends nothing anywhere.
os.environ.setdefault("KEDRO_DISABLE_TELEMETRY", "1")
