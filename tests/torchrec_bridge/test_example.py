"""The example for users runs with cost models from disk."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import warm
from cost_models.conftest import FIT, HEAD
from cost_models.machine import make_comm_sample, make_shards, make_table, true_comm_ms, true_compute_ms
from torchrec_bridge import needs_torchrec  # noqa: F401, skips this module if TorchRec is absent

from neuroshard_pipeline.cost_models.comm_training import fit_comm
from neuroshard_pipeline.cost_models.compute_training import fit_compute
from neuroshard_pipeline.cost_models.measured import CommData, ComputeData, split_samples
from neuroshard_pipeline.cost_models.params import CommTrainParams, ComputeTrainParams
from neuroshard_pipeline.tables.samples import ComputeSample

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrec_dlrm.py"
AGENT = Path(__file__).parents[1] / "torchrun_agent.py"
RUN_IT = Path(__file__).with_name("run_and_list_threads.py")
QUICK = FIT | {"epochs": 3}


@pytest.fixture
def models_folder(tmp_path: Path) -> Path:
    """Cost models after 3 epochs of training, in the layout of the catalog."""
    rng = np.random.default_rng(0)
    tables = [make_table(rng, f"t{index}") for index in range(20)]
    samples = tuple(ComputeSample(f"compute-{i}", 512, make_shards(rng, tables, 1 + i % 9)) for i in range(50))
    costs = np.array([true_compute_ms(sample.shards, 512) for sample in samples])
    data = ComputeData(samples, costs, left_out=0)
    params = ComputeTrainParams(**QUICK, **HEAD)
    compute, _ = fit_compute(data, split_samples(data.sample_ids, 0.1, 0.2, 0), params, {"hardware": {"device": "cpu"}})
    comm_samples = tuple(make_comm_sample(rng, index, 2) for index in range(50))
    volumes = CommData(comm_samples, tuple(true_comm_ms(sample) for sample in comm_samples), left_out=0)
    comm_params = CommTrainParams(**QUICK)
    comm, _ = fit_comm(volumes, split_samples(volumes.sample_ids, 0.1, 0.2, 0), comm_params, {})
    compute.save(tmp_path / "compute_cost_model" / "v1" / "compute_cost_model")
    comm.save(tmp_path / "comm_cost_model" / "v1" / "comm_cost_model")
    return tmp_path


@pytest.mark.slow
def test_the_example_trains_on_two_ranks(models_folder, tmp_path):
    assert len(EXAMPLE.read_text().splitlines()) < 100
    # Agent and ranks are forks, because new interpreters would import torch.
    forked = ["--standalone", "--nproc_per_node", "2", "--start-method", "forkserver", "--run-path"]
    agent = warm.start([AGENT, *forked, RUN_IT, EXAMPLE, models_folder], tmp_path, {"CUDA_VISIBLE_DEVICES": ""})
    agent.join(180)
    assert agent.exitcode == 0, (tmp_path / "stderr").read_text()[-3000:]
    told = (tmp_path / "stdout").read_text()
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", told)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] - 0.05
    assert "8 tables" in told
    assert told.count("threads at exit:") == 2
    assert "gloo" not in told, "threads of a process group are alive at exit and may abort the process"
