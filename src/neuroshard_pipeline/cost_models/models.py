"""The cost models as a user holds them: loaded together, asked with shards and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.training_range import TRAINING_RANGE, comm_caveats, compute_caveats
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

    def __repr__(self) -> str:
        worlds = ", ".join(map(str, self.comm.world_sizes))
        device = _origin(self.compute).get("device", "an unnamed device")
        return f"CostModels(trained on {device} at batch_size {self.compute.batch_size}, collectives of {worlds} ranks)"

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
        compute = compute_caveats(task, self.compute.provenance.get(TRAINING_RANGE, {}))
        return (*compute, *comm_caveats(task, self.comm.provenance.get(TRAINING_RANGE, {})))

    def compute_ms(
        self, shards: Sequence[Shard], batch_size: int | None = None, optimizer: str = "sgd"
    ) -> tuple[float, float]:
        """Forward and backward compute cost in ms of the shards of one rank; 0 without shards.

        Args:
            shards: all shards of the rank, which one fused kernel looks up.
            batch_size: global batch; None for the one that most training samples had.
            optimizer: fused into the backward pass.
        """
        costs = self.compute.predict([shards], _given(batch_size, self.compute.batch_size), optimizer)
        return float(costs[0, 0]), float(costs[0, 1])

    def compute_interval_ms(
        self, shards: Sequence[Shard], batch_size: int | None = None, optimizer: str = "sgd"
    ) -> tuple[float, float]:
        """Between which bounds, in ms, 90 % of measurements of forward + backward lie for the shards of one rank.

        The farther the shards lie outside what was trained on, the wider; (0, 0) without shards.

        Args:
            shards: all shards of the rank, which one fused kernel looks up.
            batch_size: global batch; None for the one that most training samples had.
            optimizer: fused into the backward pass.
        """
        bounds = self.compute.interval([shards], _given(batch_size, self.compute.batch_size), optimizer)
        return float(bounds[0, 0]), float(bounds[0, 1])

    def comm_ms(
        self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Forward and backward communication cost in ms of every rank, for any world size.

        Args:
            dim_sums: (..., W) summed widths of each rank's shards.
            start_skew_ms: (..., W) how much later than the first rank each enters the forward collective.
            batch_size: global batch; None for the one that the model was trained at.
        """
        return self.comm.predict(dim_sums, start_skew_ms, _given(batch_size, self.comm.batch_size))


def _given(batch_size: int | None, trained_at: int) -> int:
    return trained_at if batch_size is None else batch_size


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
