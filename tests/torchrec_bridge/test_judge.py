"""What the judge of plans says about its network, and how tasks share its time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import ROOT

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.plan_data import PlanCost
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.truth import judge
from neuroshard_pipeline.torchrec_bridge.truth.judge import other_network
from neuroshard_pipeline.torchrec_bridge.truth.params import JudgeParams

VALUES = yaml.safe_load((ROOT / "conf/base/parameters_truth.yml").read_text())["truth"]["steps"]
GLOO = {"comm_backend": "gloo"}
ETHERNET = {"comm_backend": "topology", "topology": {"preset": "ethernet-25"}}


@pytest.mark.parametrize(
    ("world_size", "network", "hardware", "predicted"),
    [
        (4, "ethernet-25", GLOO, "collectives of gloo"),
        (4, "ethernet-100", ETHERNET, "collectives of ethernet-25"),
        (4, "ethernet-25", ETHERNET, None),
        (2, "ethernet-25", GLOO, None),
        (4, None, GLOO, None),
        (4, "ethernet-25", {}, None),
    ],
)
def test_a_network_that_the_cost_models_do_not_predict_is_named(world_size, network, hardware, predicted):
    table = Table("t", 10, 4, 1.0)
    plan = Plan(ShardingTask([table], world_size, 8, 2**20), (whole(table),), (0,), "a", compute_device=None)
    params = JudgeParams(**{**VALUES, "most_ranks": 2, "network": network})
    comm: Any = SimpleNamespace(provenance={"hardware": hardware})
    said = other_network([plan], comm, params)
    assert said is None if predicted is None else predicted in str(said)


@pytest.mark.parametrize(("budget_s", "shares_s"), [(60.0, [10.0, 50.0]), (None, [None, None])])
def test_tasks_share_the_time_budget_by_their_predicted_steps(monkeypatch, budget_s, shares_s):
    def plan(task_id: str, sharder: str, step_ms: float, rank: int) -> Plan:
        task = ShardingTask([table], 2, 8, 2**20, task_id=task_id)
        costs = [(step_ms / 2, step_ms / 2), *[(0.0, 0.0)] * 3]
        return Plan(task, (whole(table),), (rank,), sharder, PlanCost(*costs), compute_device=None)

    def timed(groups, *_):
        asked.extend((group.budget_s, group.least_rounds) for group in groups)
        return iter(())

    table, asked = Table("t", 10, 4, 1.0), list[Any]()
    # The first plan of every task is measured twice.
    plans = [plan("short", "a", 5.0, 0), plan("long", "a", 15.0, 0), plan("long", "b", 20.0, 1)]
    monkeypatch.setattr(judge, "timed_groups", timed)
    params = JudgeParams(**{**VALUES, "most_ranks": 2, "time_budget_s": budget_s, "least_rounds": 4})
    assert list(judge.measure_missing(plans, params, {})) == []
    assert asked == [(share and pytest.approx(share), 4) for share in shares_s]
