"""Fits the step cost models of modelled GPUs to the formulas of the lab, and puts them beside the shipped cost models.

    python scripts/ship_step_models.py a100 h100 h200      # one minute for each on one core

Device and cluster are those of the shipped compute and communication cost models.
"""

import shutil
import sys

from neuroshard_pipeline.cost_models import ComputeCostModel
from neuroshard_pipeline.cost_models.modelled_step import modelled_step_model
from neuroshard_pipeline.cost_models.shipped import MODEL_NAMES, STEP_MODEL_NAME, shipped_folder
from neuroshard_pipeline.lab.device import ModelledDevice, modelled_device
from neuroshard_pipeline.lab.network import NetworkParams

WORLD_SIZES = (2, 4, 8, 16, 32, 64, 128)
RANKS_PER_SIZE = 1000


def main(name: str) -> None:
    """Replace one shipped step cost model, and print its errors."""
    hardware = ComputeCostModel.load(shipped_folder(name) / MODEL_NAMES[0]).provenance["hardware"]
    facts = hardware.get("modelled_device")
    device = ModelledDevice(**facts) if facts else modelled_device(name)
    cluster = {key: value for key, value in hardware["topology"].items() if key != "preset"}
    model = modelled_step_model(device, NetworkParams(**cluster), WORLD_SIZES, RANKS_PER_SIZE, hardware)
    target = shipped_folder(name) / STEP_MODEL_NAME
    shutil.rmtree(target, ignore_errors=True)
    model.save(target)
    print(name, {part: round(error, 3) for part, error in model.errors.items()})


if __name__ == "__main__":
    for each in sys.argv[1:]:
        main(each)
