"""Without TorchRec, all pipelines are registered, and what needs it names the extra that installs it."""

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
    print("the check:", error)
try:
    from neuroshard_pipeline.torchrec_bridge import torchrec_perf_config
except TorchRecMissingError as error:
    print("the config:", error)
"""


def test_the_check_and_the_config_of_torchrecs_planner_need_torchrec_only_when_they_are_used():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for part in ("check", "config"):
        assert f"the {part}: " in done.stdout
    assert done.stdout.count("install the extra 'torchrec'") == 2
