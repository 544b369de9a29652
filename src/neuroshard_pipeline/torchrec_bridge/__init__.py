"""Plans for TorchRec: stored as JSON, made by a planner for `DistributedModelParallel`, and checked by training.

| module | holds | needs the extra `torchrec` |
| --- | --- | --- |
| `plan_json` | `plan_to_json`, `plan_from_json`: lossless conversion of plans to and from JSON | no |
| `planner` | `NeuroShardPlanner`: a sharder behind the interface of TorchRec's planner | yes |
| `running` | `read_plan`: the plan that runs, from any of these forms, for `ns.replan` | for TorchRec's own forms |
| `made_for` | `MadeFor`, `load_plan`: stored plans, for what they were made for | no |
| `plan_loader` | `NeuroShardPlanLoader`: TorchRec's own planner uses a plan of this project | yes |
| `moving` | `move`, `save`, `load`: a model under another plan | yes |
| `bag_sampling` | `sampled_bags`: a batch with at most k ids per bag | yes |
| `profile` | `profile_from_batches`: id statistics of real batches | yes |
| `perf_config` | `torchrec_perf_config`, `torchrec_planner`: TorchRec's planner with this project's costs | yes |
| `constraints` | translates TorchRec's constraints for the search, or refuses them | no |
| `agreement` | collectives that do not hang when a rank fails | no |
| `ranks` | one process per rank, for `train_check` and `truth` | no |
| `train_check` | trains a DLRM and DHEN under several plans and compares speeds and losses | when it runs |
| `virtual` | ranks on a modelled network, more than this machine has cores | when it runs |
| `truth` | times the embedding module alone under plans, beside their predicted costs | when it runs |
| `step_costs` | measures steps under random plans, and fits the step cost model to them | when it measures |
| `tiered` | embedding modules whose tables are cut into tiers, by popularity of rows | yes |

`neuroshard_pipeline.torchrec_plan` writes and reads TorchRec's own structures, and has `torchrec_sharders`. This module
imports the names below on first use, so that `plan_json` works without TorchRec.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuroshard_pipeline.torchrec_bridge.bag_sampling import sampled_bags
    from neuroshard_pipeline.torchrec_bridge.made_for import MadeFor, load_plan
    from neuroshard_pipeline.torchrec_bridge.perf_config import torchrec_perf_config, torchrec_planner
    from neuroshard_pipeline.torchrec_bridge.plan_loader import NeuroShardPlanLoader
    from neuroshard_pipeline.torchrec_bridge.planner import (
        NeuroShardPlanner,
        PlannerOptions,
        profile_from_batches,
        torchrec_sharders,
    )
    from neuroshard_pipeline.torchrec_bridge.running import read_plan

__all__ = [
    "MadeFor",
    "NeuroShardPlanLoader",
    "NeuroShardPlanner",
    "PlannerOptions",
    "load_plan",
    "profile_from_batches",
    "read_plan",
    "sampled_bags",
    "torchrec_perf_config",
    "torchrec_planner",
    "torchrec_sharders",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = {"torchrec_perf_config": "perf_config", "torchrec_planner": "perf_config", "read_plan": "running"}
    modules |= {"MadeFor": "made_for", "load_plan": "made_for", "NeuroShardPlanLoader": "plan_loader"}
    module = (modules | {"sampled_bags": "bag_sampling"}).get(name, "planner")
    return getattr(import_module(f"{__name__}.{module}"), name)
