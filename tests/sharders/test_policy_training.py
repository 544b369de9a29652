import dataclasses

import numpy as np
import pytest
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.tasks import random_task

from neuroshard_pipeline.augment.pool import PoolParams, generate_pool
from neuroshard_pipeline.augment.task_draws import ShardingTaskParams
from neuroshard_pipeline.search.price import price_plan
from neuroshard_pipeline.sharders.policies.params import PolicyTaskParams
from neuroshard_pipeline.sharders.policies.policy import PolicyError
from neuroshard_pipeline.sharders.policies.tasks import PolicyTasks, draw_policy_tasks
from neuroshard_pipeline.sharders.policies.training import cost_ratio, solvable_games, train_policy
from neuroshard_pipeline.sharders.random import RandomSharder
from sharders.policy_makers import KINDS, QUICK

MODELS = small_models()


def some_tasks(first, count):
    return tuple(
        dataclasses.replace(random_task(np.random.default_rng(seed), 12, 3, 0.4), task_id=f"task-{seed}")
        for seed in range(first, first + count)
    )


TASKS = PolicyTasks(some_tasks(0, 10), some_tasks(100, 5))


def train(kind, **changes):
    params = QUICK.model_copy(update=changes)
    return train_policy(kind, TASKS, MODELS, WEIGHTS_AND_OPTIMIZER, params, {"run_id": "test"})


def random_ratio(games, greedy_ms):
    """Mean ratio of the predicted cost of random plans to that of the cheapest greedy plan of each task."""
    sharder, rng = RandomSharder(), np.random.default_rng(0)
    ratios = [
        price_plan(game.problem, sharder.shard(game.problem, rng), "random").predicted_cost_ms / greedy
        for game, greedy in zip(games, greedy_ms, strict=True)
        for _ in range(10)
    ]
    return float(np.mean(ratios))


@pytest.mark.parametrize(("kind", "reward"), [("dreamshard", "cost"), ("autoshard", "balance")])
def test_learning_beats_random_on_unseen_tasks_of_another_size(kind, reward):
    policy, progress = train(kind, reward=reward)
    larger = [random_task(np.random.default_rng(seed), 30, 5, 0.3) for seed in range(200, 206)]
    games, greedy_ms = solvable_games(larger, MODELS, WEIGHTS_AND_OPTIMIZER)
    assert len(games) == 6
    assert cost_ratio(policy, games, greedy_ms) < 0.93 * random_ratio(games, greedy_ms)
    assert progress["cost_ratio"].tail(15).mean() < progress["cost_ratio"].head(5).mean()
    assert progress["validation_ratio"].min() == policy.provenance["validation_ratio"]


@pytest.mark.parametrize("kind", KINDS)
def test_training_depends_on_the_seed_alone(kind):
    first, again, other = (train(kind, steps=3, seed=seed)[0].weights for seed in (1, 1, 2))
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)


def test_tasks_that_no_heuristic_fits_are_refused_with_the_remedy():
    tight = PolicyTasks(*[tuple(random_task(np.random.default_rng(0), 2, 4, 1.05) for _ in range(2)) for _ in range(2)])
    with pytest.raises(PolicyError, match=r"0 of 2 training tasks.* and 0 of 2 validation tasks.*, or raise memory"):
        train_policy("dreamshard", tight, MODELS, WEIGHTS_AND_OPTIMIZER, QUICK, {})


def test_fewer_training_tasks_than_a_step_plays_are_refused():
    easy, tight = (random_task(np.random.default_rng(0), 12, 4, share) for share in (0.3, 1.05))
    tasks = PolicyTasks((easy, tight), (easy,))
    with pytest.raises(PolicyError, match=r"1 of 2 training tasks.*; 2 \(tasks_per_step\) and 1 are needed; draw more"):
        train_policy("dreamshard", tasks, MODELS, WEIGHTS_AND_OPTIMIZER, QUICK, {})


def test_training_tasks_share_no_table_with_the_evaluation_pool():
    pool = PoolParams(num_tables=60, batch_size=64, row_scale=1024, seed=0)
    drawn = ShardingTaskParams(
        world_sizes=(2, 4),
        tasks_per_world_size=(1, 1),
        batch_size=64,
        dimensions=(8, 16),
        min_tables_per_4_ranks=4,
        max_tables_per_4_ranks=20,
        memory_bytes=2**26,
        memory_fill=0.8,
        tight_share=0.0,
        local_world_size=None,
        seed=3,
    )
    params = PolicyTaskParams(
        pool_seed=101,
        world_sizes=(2, 4),
        dimensions=(8, 16),
        min_tables_per_4_ranks=4,
        max_tables_per_4_ranks=20,
        tasks_per_world_size=6,
        validation_tasks=4,
        seed=7,
    )
    tasks = draw_policy_tasks(pool, drawn, params)
    assert (len(tasks.training), len(tasks.validation)) == (8, 4)
    seen = {(row.num_embeddings, row.pooling_factor, row.unique_rows) for row in generate_pool(pool).itertuples()}
    mine = {
        (t.num_embeddings, t.pooling_factor, t.unique_rows)
        for task in (*tasks.training, *tasks.validation)
        for t in task.tables
    }
    assert len(mine) > 20
    assert not mine & seen
