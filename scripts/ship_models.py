"""Copies the newest cost models of an environment into the package, for `ns.load_cost_models(<environment>)`.

Run it after the training, once for each of the environments a100, h100 and h200:

    kedro run --env h100 --pipeline pretrain && python scripts/ship_models.py h100
"""

import argparse
import shutil
import sys
from pathlib import Path

from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.cost_models.checkpoint import version_folder
from neuroshard_pipeline.cost_models.shipped import MODEL_NAMES, STEP_MODEL_NAME, shipped_folder
from neuroshard_pipeline.errors import NeuroShardError

ROOT = Path(__file__).resolve().parents[1]


def ship(environment: str) -> None:
    """Replace the shipped models, and print the new ones. A step cost model that was not trained is removed."""
    trained = ROOT / "data" / environment / "06_models"
    names = [name for name in (*MODEL_NAMES, STEP_MODEL_NAME) if name in MODEL_NAMES or (trained / name).is_dir()]
    sources = {name: version_folder(trained / name, None) for name in names}  # nothing is deleted if one is missing
    shutil.rmtree(shipped_folder(environment) / STEP_MODEL_NAME, ignore_errors=True)
    for name, source in sources.items():
        target = shipped_folder(environment) / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        size = sum(file.stat().st_size for file in target.iterdir())
        print(f"{source.relative_to(ROOT)} -> {target.relative_to(ROOT)}, {size / 1024:.0f} KiB")
    print(load_cost_models(environment))


def main() -> None:
    """Ship the models of the environment that the command line names."""
    files = (ROOT / "conf").glob("*/globals.yml")
    environments = sorted(path.parent.name for path in files if "shipped_models" in path.read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", choices=environments, help="the environment of the training")
    try:
        ship(environment := parser.parse_args().environment)
    except NeuroShardError as error:
        sys.exit(f"{error} --env {environment}")


if __name__ == "__main__":
    main()
