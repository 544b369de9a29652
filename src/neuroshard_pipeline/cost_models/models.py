"""The cost models of one machine, loaded together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models import caveats
from neuroshard_pipeline.cost_models.checkpoint import COMMAND, version_folder
from neuroshard_pipeline.cost_models.comm import CommCostModel
from neuroshard_pipeline.cost_models.compute import ComputeCostModel
from neuroshard_pipeline.cost_models.shipped import MODEL_NAMES, STEP_MODEL_NAME, shipped_folder, shipped_names
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.cost_models.training_range import TRAINING_RANGE, comm_caveats, compute_caveats
from neuroshard_pipeline.errors import CostModelError
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask


@dataclass(frozen=True)
class CostModels:
    """The cost models of one machine.

    Attributes:
        compute: costs of lookups.
        comm: costs of all-to-alls.
        step: costs of the other parts of a step, or None if they are unknown. With None, plans are column-wise, and
            their cost is that of lookups and all-to-alls, as in [Zha2023].
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
        compute = _origin(self.compute)
        others = {"communication model": _origin(self.comm)}
        if self.step is not None:
            others["step cost model"] = _machine(self.step)
        for noun, other in others.items():
            differing = [name for name in compute if name in other and compute[name] != other[name]]
            if differing:
                raise CostModelError(
                    f"the compute model and the {noun} do not belong together: {differing[0]} is "
                    f"{compute[differing[0]]!r} for one and {other[differing[0]]!r} for the other; load the same "
                    "version of both, or train both again with: kedro run --pipeline pretrain"
                )

    def caveats(self, task: ShardingTask) -> tuple[str, ...]:
        """Sentences about predicted costs of a task: what is modelled, extrapolated, approximated or left out.

        One sentence tells if other programs used many of the cores while the costs were measured.
        """
        outside = [
            *compute_caveats(task, self.compute.provenance.get(TRAINING_RANGE, {})),
            *comm_caveats(task, self.comm.provenance.get(TRAINING_RANGE, {})),
        ]
        return (
            *caveats.modelled(_hardware(self.compute), self.step),
            *caveats.busy_machine(_hardware(self.compute)),
            *(f"extrapolated: {caveat}" for caveat in outside),
            *caveats.step_extrapolations(task, self.step),
            *caveats.unpriced_copies(task, self.step),
            *caveats.approximations(task, self.step),
            *caveats.host_memory(task, self.step),
        )

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
    """Values that two models of one machine share: the batch size, and the hardware if it is known."""
    return {"batch_size": model.batch_size, **_machine(model)}


def _machine(model: ComputeCostModel | CommCostModel | StepCostModel) -> dict[str, object]:
    """The hardware that a model's costs come from, as far as it is known."""
    known = _hardware(model)
    names = ("device", "gpu_model", "cpu_model", "cores", "compute_backend", "comm_backend")
    return {name: known[name] for name in names if name in known}


def _hardware(model: ComputeCostModel | CommCostModel | StepCostModel) -> dict[str, Any]:
    hardware = model.provenance.get("hardware")
    return hardware if isinstance(hardware, dict) else {}


def load_cost_models(path: Path | str = "data/06_models", version: str | None = None) -> CostModels:
    """Load the cost models.

    Args:
        path: folder that holds `compute_cost_model/<version>/`, `comm_cost_model/<version>/` and, if steps were
            measured or modelled, `step_cost_model/<version>/`; or the name of shipped cost models such as `h100`
            (`shipped_names`). Costs of shipped models are modelled, not measured.
        version: a version that exists for the first two models. The step cost model is loaded if it has this version,
            too. None for the newest version of each model.

    Raises:
        CostModelError: a model or version is missing, a file cannot be used, a version of shipped models was asked for,
            or the models differ in machine or batch size. The message names what is wrong, and the remedy.
    """
    if path in shipped_names() and not Path(path).is_dir():
        if version is not None:
            raise CostModelError(f"the shipped cost models {path} have no versions; leave out version={version!r}")
        folders = [shipped_folder(str(path)) / name for name in (*MODEL_NAMES, STEP_MODEL_NAME)]
        return _loaded(folders[0], folders[1], folders[2] if folders[2].is_dir() else None)
    if not Path(str(path)).is_dir():  # a value that is not a path, such as None, gets into the error
        problem = "is not a folder" if Path(str(path)).exists() else "no such folder"
        shipped = ", ".join(shipped_names())
        raise CostModelError(f"{path}: {problem}; train cost models with: {COMMAND}, or name shipped ones: {shipped}")
    compute, comm = (version_folder(Path(path) / name, version) for name in MODEL_NAMES)
    steps = (Path(path) / STEP_MODEL_NAME).glob(f"{version or '*'}/{STEP_MODEL_NAME}")
    return _loaded(compute, comm, max((step for step in steps if step.is_dir()), default=None))


def _loaded(compute: Path, comm: Path, step: Path | None) -> CostModels:
    return CostModels(
        ComputeCostModel.load(compute), CommCostModel.load(comm), None if step is None else StepCostModel.load(step)
    )
