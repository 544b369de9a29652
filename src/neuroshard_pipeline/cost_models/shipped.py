"""Cost models that the package ships for GPUs, trained on modelled costs in the environment with the GPU's name."""

from importlib.resources import files
from pathlib import Path

#: Names of the two models in `data/06_models` that the stage `train` always makes, and of their folders in the package.
MODEL_NAMES = ("compute_cost_model", "comm_cost_model")
#: Name of the third model, which is optional.
STEP_MODEL_NAME = "step_cost_model"


def shipped_names() -> tuple[str, ...]:
    """Names that `load_cost_models` accepts instead of a folder."""
    return tuple(sorted(entry.name for entry in _shipped().iterdir() if entry.is_dir()))


def shipped_folder(name: str) -> Path:
    """Folder of the shipped models of a modelled GPU; it need not exist."""
    return _shipped() / name


def _shipped() -> Path:
    return Path(str(files("neuroshard_pipeline.cost_models"))) / "pretrained"
