"""Plans for several GPUs and sizes of a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.evaluation.sweep import MEMORY_GIB, sweep
from neuroshard_pipeline.report.sweep_page import COLUMNS, sweep_html, sweep_rows, sweep_text
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

ROOT = Path(__file__).resolve().parents[2]
TABLES = [Table("a", 1_000_000, 64, 20.0), Table("b", 50_000, 32, 2.0)]


@pytest.fixture(scope="module")
def candidates():
    """On one rank, the tables do not fit into 0.2 GiB; on two ranks, each has room for half of them."""
    return sweep(TABLES, ["h100"], [1, 2], 4096, memory_gib=0.2, workers=1)


def test_a_candidate_is_the_plan_of_its_task_or_the_reason_why_there_is_none(candidates):
    one, two = candidates
    assert [(each.gpu, each.ranks) for each in candidates] == [("h100", 1), ("h100", 2)]
    assert one.plan is None
    assert "missing" in one.problem
    assert (one.samples_per_second, one.slowest_part) == (0.0, "")
    expected = shard(ShardingTask(TABLES, 2, 4096, int(0.2 * 2**30)), load_cost_models("h100"))
    assert two.plan == expected
    assert two.step_ms == expected.predicted_cost_ms
    assert two.samples_per_second * two.step_ms == pytest.approx(4096 * 1e3)
    assert two.memory_left_gib == pytest.approx(0.2 - max(expected.memory_bytes) / 2**30, abs=1e-6)
    name, share = two.slowest_part.rstrip(")%").split(" (")
    assert 100 / 7 <= int(share) <= 100, name


def test_processes_find_the_same_plans(candidates):
    assert sweep(TABLES, ["h100"], [1, 2], 4096, memory_gib=0.2, workers=2) == candidates


def test_text_and_page_show_every_candidate(candidates):
    rows = sweep_rows(candidates)
    assert all(len(row) == len(COLUMNS) for row in rows)
    text, page = sweep_text(candidates), sweep_html(candidates, "title", ["note"])
    for shown in (text, page):
        assert "does not fit" in shown
        assert candidates[0].problem[:20] in shown
        assert rows[1][2] in shown
    assert "http" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)  # the page loads nothing


def test_memory_of_the_gpus_is_that_of_the_environments():
    for name, gib in MEMORY_GIB.items():
        values = yaml.safe_load((ROOT / "conf" / name / "globals.yml").read_text())
        assert values["device_memory_gib"] == gib


def test_an_unknown_gpu_is_refused():
    with pytest.raises(TaskError, match="did you mean 'h100'"):
        sweep(TABLES, ["h10"], [2], 4096)
