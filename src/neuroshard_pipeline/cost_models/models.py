"""Both cost models of one machine, loaded together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models.checkpoint import COMMAND, version_folder
from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.shipped import MODEL_NAMES, shipped_folder, shipped_names
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.cost_models.training_range import TRAINING_RANGE, comm_caveats, compute_caveats
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask


@dataclass(frozen=True)
class CostModels:
    """A compute and a communication cost model of one machine.

    Attributes:
        compute: costs of lookups.
        comm: costs of collectives.
        step: costs of the other parts of a step, or None where they were not measured. Plans then have the published
            cost, lookups and all-to-all, and are column-wise.
    """

    compute: ComputeCostModel
    comm: CommCostModel
    step: StepCostModel | None = None

    def __repr__(self) -> str:
        worlds = ", ".join(map(str, self.comm.world_sizes))
        origin = _origin(self.compute)
        device = origin.get("gpu_model") or origin.get("device", "an unnamed device")
        return f"CostModels(trained on {device} at batch_size {self.compute.batch_size}, collectives of {worlds} ranks)"

    def __post_init__(self) -> None:
        compute, comm = _origin(self.compute), _origin(self.comm)
        differing = [name for name in compute if name in comm and compute[name] != comm[name]]
        if differing:
            raise CostModelError(
                f"the compute and the communication model do not belong together: {differing[0]} is "
                f"{compute[differing[0]]!r} for one and {comm[differing[0]]!r} for the other; load the same version "
                "of both, or train both again with: kedro run --pipeline pretrain"
            )

    def caveats(self, task: ShardingTask) -> tuple[str, ...]:
        """Sentences about predicted costs of a task: which training costs were modelled, and what is extrapolated."""
        outside = [
            *compute_caveats(task, self.compute.provenance.get(TRAINING_RANGE, {})),
            *comm_caveats(task, self.comm.provenance.get(TRAINING_RANGE, {})),
        ]
        return (*_modelled(_hardware(self.compute)), *(f"extrapolated: {caveat}" for caveat in outside))

    def compute_ms(
        self, shards: Sequence[Shard], batch_size: int | None = None, optimizer: str = "sgd"
    ) -> tuple[float, float]:
        """Forward and backward compute cost in ms of the shards of one rank; (0, 0) without shards.

        Args:
            shards: all shards of the rank, which one fused kernel looks up.
            batch_size: global batch size; None for the batch size of most training samples.
            optimizer: optimizer that is fused into the backward pass.
        """
        forward_ms, backward_ms = self.compute.predict([shards], _given(batch_size, self.compute), optimizer)[0]
        return float(forward_ms), float(backward_ms)

    def compute_interval_ms(
        self, shards: Sequence[Shard], batch_size: int | None = None, optimizer: str = "sgd"
    ) -> tuple[float, float]:
        """90 % prediction interval of forward + backward in ms: lower and upper bound; (0, 0) without shards.

        The interval widens with the distance of the shards from the training range. Arguments are those of
        `compute_ms`.
        """
        low_ms, high_ms = self.compute.interval([shards], _given(batch_size, self.compute), optimizer)[0]
        return float(low_ms), float(high_ms)

    def comm_ms(
        self, dim_sums: ArrayLike, start_skew_ms: ArrayLike, batch_size: int | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Forward and backward communication cost in ms of every rank, each (..., W), for any world size.

        Args:
            dim_sums: (..., W) summed widths of each rank's shards.
            start_skew_ms: (..., W) how much later than the first rank each rank enters the forward collective.
            batch_size: global batch size; None for the batch size of most training samples.
        """
        return self.comm.predict(dim_sums, start_skew_ms, _given(batch_size, self.comm))


def _given(batch_size: int | None, model: ComputeCostModel | CommCostModel) -> int:
    return model.batch_size if batch_size is None else batch_size


def _origin(model: ComputeCostModel | CommCostModel) -> dict[str, object]:
    """Values that two models of one machine share: the batch size, and the hardware where it is known."""
    known = _hardware(model)
    names = ("device", "gpu_model", "cpu_model", "cores", "compute_backend", "comm_backend")
    return {"batch_size": model.batch_size, **{name: known[name] for name in names if name in known}}


def _hardware(model: ComputeCostModel | CommCostModel) -> dict[str, Any]:
    hardware = model.provenance.get("hardware")
    return hardware if isinstance(hardware, dict) else {}


def _modelled(hardware: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about costs that come from formulas of the lab, not from measurements."""
    if hardware.get("compute_backend") == "modelled":
        yield f"modelled: compute costs come from a formula for {hardware.get('gpu_model')}, not from measurements"
    if hardware.get("comm_backend") == "topology":
        cluster = hardware.get("topology", {}).get("preset") or "a cluster"
        yield f"modelled: communication costs come from a formula for {cluster}, not from measurements"


def load_cost_models(path: Path | str = "data/06_models", version: str | None = None) -> CostModels:
    """Load both cost models.

    Args:
        path: folder that holds `compute_cost_model/<version>/` and `comm_cost_model/<version>/`, or the name of shipped
            cost models such as `h100` (`shipped_names`). Costs of shipped models are modelled, not measured.
        version: a version that exists for both models; None for the newest version of each model.

    Raises:
        CostModelError: a model or version is missing. The message names the folder, the versions and the remedy.
    """
    if path in shipped_names() and not Path(path).is_dir():
        if version is not None:
            raise CostModelError(f"the shipped cost models {path} have no versions, not {version!r}; name none")
        compute, comm = (shipped_folder(str(path)) / name for name in MODEL_NAMES)
        return CostModels(ComputeCostModel.load(compute), CommCostModel.load(comm))
    if not Path(path).is_dir():
        raise CostModelError(
            f"{path}: no such folder; train cost models with: {COMMAND}, or name shipped ones: "
            f"{', '.join(shipped_names())}"
        )
    return CostModels(
        ComputeCostModel.load(version_folder(Path(path) / "compute_cost_model", version)),
        CommCostModel.load(version_folder(Path(path) / "comm_cost_model", version)),
    )
