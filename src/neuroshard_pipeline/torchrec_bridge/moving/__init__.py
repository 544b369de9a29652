"""Carries out a change of plan: the rows and the optimizer's state of a model, under another plan.

| module | holds |
| --- | --- |
| `parts` | the tensors of a rank, as rectangles of tables, of the states of optimizers, and of all other tensors |
| `wanted` | which rectangles a rank needs of another plan's, and what becomes of row-wise state if columns change |
| `exchange` | `move`: from a model to one with another plan, in the same processes, with an all-to-all |
| `checkpoint` | `save` and `load`: with torch.distributed.checkpoint, for any number of ranks |

TorchRec's own `DistributedModelParallel.reshard` moves less (docs/replan.md says what).
"""

from neuroshard_pipeline.torchrec_bridge.moving.checkpoint import load, save
from neuroshard_pipeline.torchrec_bridge.moving.exchange import move

__all__ = ["load", "move", "save"]
