"""The examples for users run with cost models from disk."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import warm
from torchrec_bridge import needs_torchrec  # noqa: F401, skips this module if TorchRec is absent

import neuroshard_pipeline as ns

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENT = Path(__file__).parents[1] / "torchrun_agent.py"
RUN_IT = Path(__file__).with_name("run_and_list_threads.py")


@pytest.fixture
def models_folder(tmp_path: Path) -> Path:
    """Shipped cost models, as if they were of this machine: so accurate that a better plan is surely better."""
    models = ns.load_cost_models("h100")
    for name, model in {"compute": models.compute, "comm": models.comm, "step": models.step}.items():
        hardware = model.provenance["hardware"] | {"device": "cpu"}
        here = replace(model, provenance=model.provenance | {"hardware": hardware})
        here.save(tmp_path / f"{name}_cost_model" / "v1" / f"{name}_cost_model")
    return tmp_path


def run_on_two_ranks(example: str, models_folder: Path, output: Path) -> tuple[str, list[float]]:
    """What the ranks of an example print, and the losses."""
    # Agent and ranks are forks, because new interpreters would import torch.
    forked = ["--standalone", "--nproc_per_node", "2", "--start-method", "forkserver", "--run-path"]
    command = [AGENT, *forked, RUN_IT, EXAMPLES / example, models_folder]
    agent = warm.start(command, output, {"CUDA_VISIBLE_DEVICES": ""})
    agent.join(180)
    assert agent.exitcode == 0, (output / "stderr").read_text()[-3000:]
    told = (output / "stdout").read_text()
    assert told.count("threads at exit:") == 2
    assert "gloo" not in told, "threads of a process group are alive at exit and may abort the process"
    return told, [float(loss) for loss in re.findall(r"loss ([0-9.]+)", told)]


@pytest.mark.slow
def test_the_example_trains_on_two_ranks(models_folder, tmp_path):
    assert len((EXAMPLES / "torchrec_dlrm.py").read_text().splitlines()) < 100
    told, losses = run_on_two_ranks("torchrec_dlrm.py", models_folder, tmp_path)
    assert len(losses) == 5
    assert losses[-1] < losses[0] - 0.05
    assert "8 tables" in told


@pytest.mark.slow
def test_the_example_moves_to_a_better_plan_and_trains_on(models_folder, tmp_path):
    told, losses = run_on_two_ranks("replan.py", models_folder, tmp_path)
    assert len(losses) == 10
    assert losses[4] < losses[0] - 0.05
    assert max(losses[5:]) < losses[0] - 0.05, "the moved model has forgotten what it had learnt"
    (moved,) = re.findall(r"moved at most ([0-9.]+) MiB per rank", told)
    assert float(moved) > 0
    assert told.count("a step took") == 2
    assert told.count("saved under the new plan, and loaded under the old one") == 1
