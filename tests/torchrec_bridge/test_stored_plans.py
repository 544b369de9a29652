"""Stored plans are used for what they were made for, refused in words for something else, and start a replan."""

import json
from dataclasses import replace

import pytest
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from search.small_models import small_models
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec_bridge.drawn_plans import TYPES, plan_of_types
from torchrec_bridge.planner_makers import bag, collection, topology
from torchrec_bridge.trained_models import LOCAL_BATCH, built

import neuroshard_pipeline as ns
from neuroshard_pipeline.torchrec_bridge import (
    NeuroShardPlanLoader,
    NeuroShardPlanner,
    PlannerOptions,
    load_plan,
    read_plan,
)
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_to_json

pytestmark = QUIET


H100, A100 = (ns.load_cost_models(name) for name in ("h100", "a100"))


@pytest.fixture(scope="module")
def model():
    return collection(bag("a"), bag("b"), bag("c"))


def make(models=H100, **options):
    chosen = PlannerOptions(**options)
    return NeuroShardPlanner(models, topology(), 8, optimizer="sgd", options=chosen)


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    planner = make()
    document = plan_to_json(planner.search(model), 2, "cuda", "ebc", planner.made_for(model).to_json())
    path = tmp_path_factory.mktemp("stored") / "plan.json"
    path.write_text(json.dumps(document))
    return path


def test_a_plan_that_was_made_for_this_is_used_without_a_search(model, path, monkeypatch):
    planner = make(present=path)
    plan = load_plan(path, planner.made_for(model))
    monkeypatch.setattr("neuroshard_pipeline.torchrec_bridge.planner.shard", None)
    monkeypatch.setattr("neuroshard_pipeline.torchrec_bridge.planner.replan", None)
    assert planner.search(model) == plan == make(present=str(path)).search(model)


def test_a_plan_that_was_made_for_something_else_is_refused_in_words(path):
    other = collection(bag("a", num_embeddings=2000), bag("b", feature_names=["x", "y"]), bag("d"))
    planner = make(sharder="neuroshard", seed=3, pipelines_input_dist=True)
    planner.batch_size = 16
    with pytest.raises(ns.NeuroShardError, match=r"plan\.json: the plan was made for something else") as error:
        load_plan(path, planner.made_for(other))
    assert [
        words
        for words in (
            "no shards of the table 'd'",
            "has the table 'c', which the task does not have",
            "table 'a' has grown from 1,000 to 2,000 rows",
            "the tables 'a', 'b' had other values (num_features, pooling_factor, reuse, unique_rows)",
            "batch_size is 64 and was 32",
            "pipelines_input_dist is True and was False",
            "the option sharder is 'neuroshard' and was 'neuroshard_plus'",
            "the option seed is 3 and was 0",
            "Plan again, from this plan with replan",
        )
        if words not in str(error.value)
    ] == []
    made_for = make().made_for(collection(bag("a"), bag("b"), bag("c")))
    with pytest.raises(ns.NeuroShardError, match=r"the cost models are CostModels\(trained on a100.* and were Cost"):
        load_plan(path, replace(made_for, models=A100))
    with pytest.raises(ns.NeuroShardError, match="does not say what it was made for"):
        load_plan(plan_to_json(make().search(other), 2, "cuda", "ebc"), made_for)


def test_a_plan_that_was_made_for_something_else_is_a_start(path):
    more = collection(bag("a"), bag("b"), bag("c"), bag("d"))
    found = make(present=path, gib_per_rank=1e-9).search(more)
    present = read_plan(path, found.task)
    kept = [(s.table.name, s.column_offset, rank) for s, rank in zip(found.shards, found.ranks, strict=True)]
    assert {(s.table.name, s.column_offset, r) for s, r in zip(present.shards, present.ranks, strict=True)} < {*kept}
    assert "d" in {name for name, *_ in kept}


def test_torchrecs_planner_uses_a_plan_with_all_types():
    model, world = built("several_collections"), 4
    plan = plan_of_types(model, world, 2, TYPES, seed=6)
    ranks = Topology(world, "cuda", hbm_cap=2**30, local_world_size=2, created_by_factory=True)
    planner = NeuroShardPlanner(small_models(), ranks, LOCAL_BATCH)
    sharders = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    loader = NeuroShardPlanLoader(planner, model, plan, sharders)
    stock = EmbeddingShardingPlanner(ranks, LOCAL_BATCH, constraints=loader.constraints, plan_loader=loader)
    found, expected = stock.plan(model, sharders), plan.to_torchrec(model, 2, "cuda")
    assert {table.sharding_type for of in found.plan.values() for table in of.values()} == set(TYPES)
    for path, of_module in expected.plan.items():
        for name, table in of_module.items():
            assert found.plan[path][name].sharding_spec == table.sharding_spec, name
            assert found.plan[path][name].ranks == table.ranks
            assert found.plan[path][name].compute_kernel == table.compute_kernel
