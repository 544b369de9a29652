"""Fits the step cost models of modelled GPUs to the formulas of the lab, and puts them beside the shipped cost models.

    python scripts/ship_step_models.py a100 h100 h200      # one minute for each on one core

Device and cluster are those of the shipped compute and communication cost models.
"""

import argparse
import shutil
from pathlib import Path

import yaml

from neuroshard_pipeline.cost_models import ComputeCostModel
from neuroshard_pipeline.cost_models.modelled_step import ModelledStepParams, step_model_of_hardware
from neuroshard_pipeline.cost_models.shipped import MODEL_NAMES, STEP_MODEL_NAME, shipped_folder, shipped_names

PARAMETERS = Path(__file__).resolve().parents[1] / "conf/base/parameters_train.yml"


def ship(name: str) -> None:
    """Replace one shipped step cost model, and print its errors."""
    params = ModelledStepParams(**yaml.safe_load(PARAMETERS.read_text())["train"]["modelled_steps"])
    hardware = ComputeCostModel.load(shipped_folder(name) / MODEL_NAMES[0]).provenance["hardware"]
    model = step_model_of_hardware(hardware, params)
    target = shipped_folder(name) / STEP_MODEL_NAME
    shutil.rmtree(target, ignore_errors=True)
    model.save(target)
    print(name, {part: round(error, 3) for part, error in model.errors.items()})


def main() -> None:
    """Ship the step cost models of the GPUs that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=shipped_names(), metavar="GPU", help="%(choices)s")
    for name in parser.parse_args().names:
        ship(name)


if __name__ == "__main__":
    main()
