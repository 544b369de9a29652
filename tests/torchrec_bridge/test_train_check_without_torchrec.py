"""Without TorchRec, all pipelines are registered, and the training check refuses to run."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["torchrec"] = None  # an import now raises the same error as if TorchRec were not installed
from neuroshard_pipeline.pipeline_registry import register_pipelines
assert "train_check" in register_pipelines()
from neuroshard_pipeline.torchrec_plan.extra import TorchRecMissingError
from neuroshard_pipeline.torchrec_bridge.train_check.problem import state_problem
try:
    state_problem(None, None, None)
except TorchRecMissingError as error:
    print(error)
"""


def test_the_check_needs_torchrec_only_when_it_runs():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "install the extra 'torchrec'" in done.stdout
