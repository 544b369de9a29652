"""The cost models as a user holds them: loaded together, asked with shards and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

COMPUTE_FOLDER = "compute_cost_model"
COMM_FOLDER = "comm_cost_model"


@dataclass(frozen=True)
class CostModels:
    """A compute and a communication cost model of one machine.

    Attributes:
        compute: what a rank's shards cost.
        comm: what the collectives cost.
    """

    compute: ComputeCostModel
    comm: CommCostModel

    def __post_init__(self) -> None:
        mine, other = _origin(self.compute), _origin(self.comm)
        differing = [name for name in mine if name in other and mine[name] != other[name]]
        if differing:
            raise CostModelError(
                f"the compute and the communication model do not belong together: {differing[0]} is "
                f"{mine[differing[0]]!r} for one and {other[differing[0]]!r} for the other; load both of the same "
                "version, or train both anew with: kedro run --pipeline pretrain"
            )

    def caveats(self, task: ShardingTask) -> tuple[str, ...]:
        """What of a task lies outside what the models were trained on, so that its predictions extrapolate."""
        hardware = self.compute.provenance.get("hardware")
        trained_optimizer = hardware.get("optimizer") if isinstance(hardware, dict) else None
        found = _batch_caveats(task, self.compute.batch_size)
        if task.world_size not in self.comm.world_sizes:
            known = ", ".join(map(str, self.comm.world_sizes))
            found.append(f"world_size {task.world_size}: collectives of {known} ranks were trained on")
        if trained_optimizer is not None and task.optimizer != trained_optimizer:
            found.append(f"optimizer {task.optimizer}: lookups were measured with {trained_optimizer}")
        types = sorted({table.data_type for table in task.tables} - {"fp32"})
        if types:
            found.append(f"data_type {', '.join(types)}: lookups were measured with fp32")
        return tuple(found)

    def compute_ms(self, shards: Sequence[Shard], batch_size: int | None = None) -> tuple[float, float]:
        """Forward and backward compute cost in ms of the shards of one rank; 0 without shards.

        Args:
            shards: all shards of the rank, which one fused kernel looks up.
            batch_size: global batch; None for the one that the model was trained at.
        """
        costs = self.compute.predict([shards], self.compute.batch_size if batch_size is None else batch_size)
        return float(costs[0, 0]), float(costs[0, 1])

    def comm_ms(
        self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Forward and backward communication cost in ms of every rank, for any world size.

        Args:
            dim_sums: (..., W) summed widths of each rank's shards.
            start_skew_ms: (..., W) how much later than the first rank each enters the forward collective.
            batch_size: global batch; None for the one that the model was trained at.
        """
        return self.comm.predict(dim_sums, start_skew_ms, self.comm.batch_size if batch_size is None else batch_size)


def _batch_caveats(task: ShardingTask, trained_at: int) -> list[str]:
    if task.batch_size == trained_at:
        return []
    return [f"batch_size {task.batch_size}: the models were trained at {trained_at}"]


def _origin(model: ComputeCostModel | CommCostModel) -> dict[str, object]:
    """What two models of one machine share: the batch size, and the hardware where it is known."""
    hardware = model.provenance.get("hardware")
    known = hardware if isinstance(hardware, dict) else {}
    names = ("device", "cpu_model", "cores", "compute_backend", "comm_backend")
    return {"batch_size": model.batch_size, **{name: known[name] for name in names if name in known}}


def load_cost_models(path: Path | str = "data/06_models", version: str | None = None) -> CostModels:
    """Load both cost models.

    Args:
        path: folder that holds `compute_cost_model/<version>/` and `comm_cost_model/<version>/`.
        version: a version that both have; None for the newest of each.

    Raises:
        CostModelError: a model or version is missing; names the folder, the available versions and the remedy.
    """
    return CostModels(
        ComputeCostModel.load(_version_folder(Path(path) / COMPUTE_FOLDER, version)),
        CommCostModel.load(_version_folder(Path(path) / COMM_FOLDER, version)),
    )


def available_versions(folder: Path) -> list[str]:
    """Versions of a model, oldest first: `<folder>/<version>/<folder's name>/`, Kedro's layout."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if (entry / folder.name).is_dir())


def _version_folder(folder: Path, version: str | None) -> Path:
    versions = available_versions(folder)
    if not versions:
        raise CostModelError(f"{folder}: holds no cost model; train one with: kedro run --pipeline pretrain")
    if version is not None and version not in versions:
        raise CostModelError(
            f"{folder}: has no version {version!r}; available are {', '.join(versions)}; leave the version out for the "
            "newest, or train a new one with: kedro run --pipeline pretrain"
        )
    return folder / (version or versions[-1]) / folder.name
