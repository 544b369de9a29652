"""Plans in TorchRec's terms: as JSON, as TorchRec's own structures, and as a planner for `DistributedModelParallel`.

| module | holds | needs the extra `torchrec` |
| --- | --- | --- |
| `plan_json` | `plan_to_json`, `plan_from_json`: plans on disk, without loss | no |
| `joining` | `joined_for_torchrec`: what TorchRec cannot hold, made to fit | no |
| `structures` | `to_torchrec`, `from_torchrec`: TorchRec's `ShardingPlan` | yes |
| `planner` | `NeuroShardPlanner`: TorchRec's planner interface over a search | yes |
| `profile` | `profile_from_batches`: id statistics of real batches | yes |
| `modules` | the tables and the optimizer of an unsharded model | yes |
| `constraints` | which of TorchRec's constraints are kept, and whether they were | no |
| `agreement` | collectives that cannot hang on a rank that has failed | no |
| `train_check` | trains a DLRM under several plans and compares speeds and losses | when it runs |

The names below are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuroshard_pipeline.torchrec_bridge.planner import NeuroShardPlanner
    from neuroshard_pipeline.torchrec_bridge.profile import profile_from_batches
    from neuroshard_pipeline.torchrec_bridge.structures import from_torchrec, to_torchrec

__all__ = ["NeuroShardPlanner", "from_torchrec", "profile_from_batches", "to_torchrec"]

_ROOM_OF = {
    "NeuroShardPlanner": "planner",
    "from_torchrec": "structures",
    "profile_from_batches": "profile",
    "to_torchrec": "structures",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
