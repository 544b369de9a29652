"""The plan that runs is read from every form that it has."""

import json

import pytest
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec_bridge.planner_makers import bag, collection
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.running_ranks import placed, read_sharded

import neuroshard_pipeline as ns
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import whole
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json
from neuroshard_pipeline.torchrec_bridge.running import read_plan

pytestmark = QUIET


@pytest.fixture
def plan():
    a, b, c = (ns.Table(name, 1000, 64, 1.0) for name in "abc")
    task = ns.ShardingTask([a, b, c], 4, 32, 2**24, local_world_size=2)
    rows = row_shards(c, "row_wise", 4)
    shards = (ns.Shard(a, 0, 32), ns.Shard(a, 32, 32), *[whole(b, "data_parallel")] * 4, *rows)
    return Plan(task, shards, (1, 3, 0, 1, 2, 3, 0, 1, 2, 3), "by_hand", compute_device="cpu")


def test_all_forms_of_a_plan_are_read_alike(plan, tmp_path):
    document = plan_to_json(plan)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    model = collection(bag("a"), bag("b"), bag("c"))
    sources = (
        plan,
        document,
        tmp_path / "plan.json",
        str(tmp_path / "plan.json"),
        plan.to_torchrec(model, 2, "cpu"),
    )
    for source in sources:
        found = read_plan(source, plan.task)
        assert placed(found) == placed(read_plan(plan, plan.task))
        assert found.world_size == 4


def test_what_is_no_plan_is_refused(plan, tmp_path):
    with pytest.raises(ns.NeuroShardError, match="3 is not a plan"):
        read_plan(3, plan.task)
    with pytest.raises(ns.NeuroShardError, match="the plan cannot be read"):
        read_plan(tmp_path / "none.json", plan.task)
    with pytest.raises(ns.NeuroShardError, match="is not sharded; give what DistributedModelParallel returned"):
        read_plan(collection(), plan.task)


def test_a_sharded_module_is_read(tmp_path):
    assert run_ranks(2, tmp_path, read_sharded) == [(True, 2)] * 2
