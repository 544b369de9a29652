"""The step cost model: the costs of a training step besides lookups and the all-to-all of pooled rows.

It has two parts. Prices per unit of work (`tables.step_work`) are fitted to steps of TorchRec's own embedding module.
Costs of reductions (`cost_models.reductions`: reduce_scatter, all_gather, all_reduce) are fitted to measured ones. For
a modelled cluster, both are fitted to the formulas of the package `lab`.

Shapes: N measured ranks, Q quantities of work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models import checkpoint
from neuroshard_pipeline.cost_models.reductions import ReductionCosts
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.step_work import QUANTITIES

#: The parts of a step that have prices, and the quantities that each part depends on.
#: `input_dist`: the exchange of bag lengths, ids and their weights, with the work on them before and after it.
#: `module`: what TorchRec's module adds to the bare lookups and collectives, forward and backward together.
#: `dense`: the launches that replicas and host tiers (rows that every host has) add, and work on their dense gradients:
#: zeroing, copying to the buffer of the all_reduce, and the optimizer.
PARTS: dict[str, tuple[str, ...]] = {
    "input_dist": (
        *("modules", "groups", "features", "bags", "ids", "weights"),
        *("sent_bags", "sent_ids", "sent_weights", "bucketized", "deduplicated"),
    ),
    "module": (
        *("modules", "groups", "features", "bags", "weights", "pooled", "weighted", "averaged", "unpooled"),
        *("returned", "reordered", "permuted", "joined", "kernels", "gathered", "expanded", "converted", "host_link"),
    ),
    "dense": ("replicas", "gradients"),
}

#: Quantities of a part that cost a single rank nothing, because it exchanges and copies neither ids nor pooled rows
#: [torchrec dist_data.py `KJTAllToAll`, comm_ops.py `alltoall_pooled`].
_FREE_ALONE = {"input_dist": PARTS["input_dist"], "module": ("pooled", "returned", "converted")}

#: Half width of a normal distribution's central 90 % divided by its mean absolute error: 1.645 / sqrt(2 / pi).
_NORMAL_90 = 2.06

#: Prices of one world size: part → quantity → ms per unit.
Prices = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class StepCostModel:
    """Prices of the `PARTS` of a step, and costs of reductions.

    Attributes:
        prices: by world size. Between two measured world sizes, a price is interpolated in log2(world size); beyond the
            measured range, the nearest world size counts.
        reductions: costs of reduce_scatter, all_gather and all_reduce.
        errors: by part, the mean relative error on held-out steps. If steps were measured, `step` is that of whole
            steps, `module` is the error of whole steps divided by the cost of `module` and `dense`, and `dense` is left
            out.
        provenance: hardware, data versions and training settings, JSON values.

    Raises:
        CostModelError: there are no prices.
    """

    prices: Mapping[int, Prices]
    reductions: ReductionCosts
    errors: Mapping[str, float] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    _found: dict[tuple[str, int], FloatArray] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.prices:
            raise CostModelError(f"the step cost model has no prices; {checkpoint.REMEDY}")

    def prices_of(self, part: str, world_size: int) -> FloatArray:
        """Ms per unit of every quantity (Q,) for one part of a step on `world_size` ranks; 0 if it has no price."""
        if (part, world_size) not in self._found:
            self._found[part, world_size] = self._interpolated(part, world_size)
        return self._found[part, world_size]

    def _interpolated(self, part: str, world_size: int) -> FloatArray:
        known, free = sorted(self.prices), _FREE_ALONE.get(part, ()) if world_size == 1 else ()
        of_known = [
            [0.0 if name in free else self.prices[size][part].get(name, 0.0) for name in QUANTITIES] for size in known
        ]
        columns = zip(*of_known, strict=True)
        return np.array([np.interp(np.log2(world_size), np.log2(known), column) for column in columns])

    def relative_bound(self, part: str) -> float:
        """Half width of a 90 % interval as a share of a part's cost if errors are normal; 0 if not in `errors`."""
        return _NORMAL_90 * self.errors.get(part, 0.0)

    def save(self, folder: Path | str) -> None:
        """Write `model.json`, and `weights.safetensors` without any arrays, into `folder`."""
        description = {
            "quantities": list(QUANTITIES),
            "prices": {
                str(size): {part: dict(of) for part, of in prices.items()} for size, prices in self.prices.items()
            },
            "reductions": self.reductions.to_json(),
            "errors": dict(self.errors),
            "provenance": self.provenance,
        }
        checkpoint.save_checkpoint(folder, "StepCostModel", description, {})

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read the files that `save` wrote; the loaded model predicts identically.

        Raises:
            CostModelError: missing, truncated or incompatible files; the message names file and remedy.
        """
        stored = checkpoint.load_checkpoint(folder, "StepCostModel")
        stored.require({"quantities": list(QUANTITIES)})
        return cls(
            prices={int(size): prices for size, prices in stored.field("prices").items()},
            reductions=ReductionCosts.from_json(stored.field("reductions")),
            errors=stored.field("errors"),
            provenance=stored.field("provenance"),
        )


def fit_prices(
    names: Sequence[str], work: FloatArray, cost_ms: FloatArray, relative_to_ms: FloatArray, shrinkage: float = 0.0
) -> dict[str, float]:
    """Prices of the quantities `names` that minimise the sum of squared relative errors; no price is negative.

    Work (N, Q) is that of N measured ranks. The errors of costs (N,) are divided by `relative_to_ms` (N,), above 0.
    With `shrinkage`, a volume that few ranks have does not explain what disturbed these ranks: `shrinkage` * N times
    the squared costs of the largest volumes, divided by the median of `relative_to_ms`, are added to the sum.
    """
    from scipy.optimize import nnls  # imported late: this takes a third of a second

    columns = work[:, [list(QUANTITIES).index(name) for name in names]]
    scale = np.maximum(columns.max(axis=0), 1e-12)
    is_volume = np.array([not QUANTITIES[name].startswith("number of") for name in names])
    penalty = np.diag(is_volume * np.sqrt(len(work) * shrinkage) / np.median(relative_to_ms))
    rows = np.vstack([columns / scale / relative_to_ms[:, None], penalty])
    prices, _ = nnls(rows, np.append(cost_ms / relative_to_ms, np.zeros(len(names))))
    return {name: float(price) for name, price in zip(names, prices / scale, strict=True)}
