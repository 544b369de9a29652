"""What would make a step faster: changes of a task, each planned anew, with what they gain and what they cost.

| module | holds |
| --- | --- |
| `what_ifs` | `WhatIf`: a change of a task, its costs, and the TorchRec setting that turns it on; those of any task |
| `frontiers` | what-ifs that make tables smaller: fewer columns, narrower data types, fewer ids per bag |
| `doubts` | which assumption decides the plan, and which measurement would settle it |
| `lines` | `advise`: a line for every what-if and for pairs of the best ones |
"""

from neuroshard_pipeline.advice.lines import Advice, Line, advise
from neuroshard_pipeline.advice.what_ifs import WhatIf

__all__ = ["Advice", "Line", "WhatIf", "advise"]
