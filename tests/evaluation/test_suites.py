import dataclasses

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from search.settings import QUICK, WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models
from search.small_step import step_models

from neuroshard_pipeline.augment.pool import PoolParams
from neuroshard_pipeline.errors import DoesNotFitError, TaskError
from neuroshard_pipeline.evaluation.suite_params import (
    SUITES,
    GiantNarrowSuiteParams,
    ManyTinySuiteParams,
    PaperSuiteParams,
    PublicSuiteParams,
    PublicTask,
    ScaleSuiteParams,
    SequencesSuiteParams,
    SeveralHostsSuiteParams,
    SuiteParams,
    SuiteSettings,
    TightSuiteParams,
)
from neuroshard_pipeline.evaluation.suites import draw_suites
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.registry import make_sharder, shard
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.table import Shard

DIMS = (8, 32)
SETTINGS = SuiteSettings(
    suites=SuiteParams(
        names=tuple(name for name in SUITES if name != "hugectr_t510"),
        user={},
        tasks=3,
        batch_size=64,
        local_world_size=None,
        most_measured_ranks=8,
        seed=1,
    ),
    pool=PoolParams(num_tables=80, batch_size=64, row_scale=1024, seed=50),
    paper=PaperSuiteParams(
        dimensions=DIMS,
        min_tables_per_4_ranks=5,
        max_tables_per_4_ranks=20,
        memory_bytes=2**24,
        memory_fill=0.8,
    ),
    tight=TightSuiteParams(world_sizes=(2, 4), memory_fill=0.9),
    scale=ScaleSuiteParams(sizes=((60, 8), (100, 16)), row_scale=4096, memory_fill=0.8),
    public=PublicSuiteParams(
        tasks=(
            PublicTask(
                suite="criteo",
                tables=str(ROOT / "data/01_raw/criteo_kaggle.csv"),
                task_id="kaggle",
                world_size=2,
                memory_bytes=2**24,
                row_scale=128,
            ),
        )
    ),
    giant_narrow=GiantNarrowSuiteParams(
        tasks=4, world_sizes=(2, 4), giants_per_4_ranks=1, widths=(4,), excess=1.25, memory_fill=0.8
    ),
    many_tiny=ManyTinySuiteParams(
        tasks=3, world_sizes=(2, 4), min_tables=50, max_tables=60, min_rows=8, memory_fill=0.05
    ),
    several_hosts=SeveralHostsSuiteParams(tasks=3, ranks=((4, 2), (8, 4))),
    sequences=SequencesSuiteParams(
        tasks=3, world_sizes=(2, 4), sequences_per_4_ranks=4, embedding_dim=16, memory_fill=0.8
    ),
    memory=WEIGHTS_AND_OPTIMIZER,
)


@pytest.fixture(scope="module")
def drawn():
    return drawn_suites(SETTINGS)


def drawn_suites(settings):
    return draw_suites(settings, small_models())


def with_suites(**changes):
    return dataclasses.replace(SETTINGS, suites=SETTINGS.suites.model_copy(update=changes))


def test_every_suite_is_as_asked(drawn):
    assert drawn.groupby("suite", sort=False)["task_id"].nunique().to_dict() == {
        "paper_4": 3, "paper_8": 3, "criteo": 1, "scale": 2, "tight": 3,
        "giant_narrow": 4, "many_tiny": 3, "several_hosts": 3, "sequences": 3,
    }  # fmt: skip
    by_task = drawn.drop_duplicates("task_id").set_index("task_id")
    assert by_task["is_measured"].eq(by_task["world_size"] <= 8).all()
    assert by_task.loc["scale-100-tables-16-ranks", "is_measured"] == np.False_


def test_another_seed_draws_other_tasks():
    first, other = (drawn_suites(with_suites(names=("paper_4",), seed=seed)) for seed in (1, 2))
    assert not other.equals(first)


def test_the_same_seed_draws_the_same_tasks_and_more_tasks_leave_the_first_ones_as_they_are(drawn):
    more = drawn_suites(with_suites(tasks=4))
    first = more[more["task_id"].isin(drawn["task_id"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(first, drawn)


def test_tasks_of_the_paper_have_widths_up_to_the_maximum_of_their_group(drawn):
    paper = drawn[drawn["suite"].isin(["paper_4", "paper_8"])]
    for group, tables in paper.groupby("group"):
        largest = int(group.split()[-1])
        assert set(tables["embedding_dim"]) == {dim for dim in DIMS if dim <= largest}
    per_task = paper.groupby("task_id").agg(tables=("table", "size"), world_size=("world_size", "first"))
    assert per_task["tables"].between(5 * per_task["world_size"] / 4, 20 * per_task["world_size"] / 4).all()


def test_tables_have_names_of_their_own(drawn):
    own = drawn[~drawn["suite"].isin(["criteo"])]
    assert own["table"].str.startswith("bench_").all()


def test_the_largest_table_of_a_tight_task_fits_no_rank_and_splitting_solves_the_task(drawn):
    for task in tasks_from_frame(drawn[drawn["suite"] == "tight"]):
        largest = max(task.tables, key=lambda table: table.weight_bytes)
        assert largest.weight_bytes > max(task.memory_limits)
        for name in ("size_greedy", "lookup_greedy"):
            with pytest.raises(DoesNotFitError):
                shard(task, small_models(), name)
        plan = shard(task, small_models(), "neuroshard")
        assert max(plan.memory_bytes) <= max(task.memory_limits)


def test_no_column_split_holds_the_giant_tables_but_rows_do(drawn):
    tasks = tasks_from_frame(drawn[drawn["suite"] == "giant_narrow"])
    assert [task.world_size for task in tasks] == [2, 4, 2, 4]
    for task in tasks:
        giants = [
            table for table in task.tables if 4 * table.weight_bytes > task.memory_limits[0] * table.embedding_dim
        ]
        assert [table.name[-8:] for table in giants] == ["_giant_0"]
        assert sum(table.weight_bytes for table in task.tables) < 0.81 * sum(task.memory_limits)
        for name in ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy", "neuroshard"):
            with pytest.raises(DoesNotFitError, match=f"{giants[0].name!r} does not fit"):
                shard(task, small_models(), name)
        problem = Problem(task, step_models(), WEIGHTS_AND_OPTIMIZER)
        placement = make_sharder("embark").shard(problem, np.random.default_rng(0))
        plan = Plan(task, placement.shards, placement.ranks, "embark", memory=WEIGHTS_AND_OPTIMIZER)
        assert {each.sharding_type for each in plan.shards if each.table == giants[0]} == {"row_wise"}


def test_giants_that_cannot_fit_together_are_refused():
    wide = SETTINGS.giant_narrow.model_copy(update={"widths": (32,)})
    settings = dataclasses.replace(with_suites(names=("giant_narrow",)), giant_narrow=wide)
    with pytest.raises(TaskError, match="lower excess, giants_per_4_ranks or widths"):
        drawn_suites(settings)


def test_tiny_tables_have_fewer_rows_than_the_batch_has_samples_and_room_for_replicas(drawn):
    for task in tasks_from_frame(drawn[drawn["suite"] == "many_tiny"]):
        assert 50 <= len(task.tables) <= 60
        assert all(8 <= table.num_embeddings < task.batch_size for table in task.tables)
        replicas = [Shard(table, 0, table.embedding_dim, sharding_type="data_parallel") for table in task.tables]
        needed = sum(WEIGHTS_AND_OPTIMIZER.shard_bytes(replica, task) for replica in replicas)
        assert needed <= min(task.memory_limits)


def test_tasks_of_several_hosts_state_the_ranks_per_host(drawn):
    tasks = tasks_from_frame(drawn[drawn["suite"] == "several_hosts"])
    assert [(task.world_size, task.num_hosts) for task in tasks] == [(4, 2), (8, 2), (4, 2)]
    assert len({tuple(task.tables) for task in tasks}) == len(tasks)


def test_the_largest_tables_are_sequence_tables_of_one_width_and_the_plan_fits(drawn):
    for task in tasks_from_frame(drawn[drawn["suite"] == "sequences"]):
        sequences = [table for table in task.tables if table.pooling == "none"]
        assert [table.embedding_dim for table in sequences] == [16] * task.world_size
        others = [table.num_embeddings for table in task.tables if table.pooling != "none"]
        assert min(table.num_embeddings for table in sequences) >= max(others)
        plan = shard(task, small_models(), "neuroshard_plus", dataclasses.replace(QUICK, memory=WEIGHTS_AND_OPTIMIZER))
        assert max(plan.memory_bytes) <= max(task.memory_limits)


def test_a_users_suite_is_read_from_its_file(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "task_id,world_size,batch_size,memory_bytes,table,num_embeddings,embedding_dim,pooling_factor,"
        "num_replica_groups\n"
        "one,2,64,1000000,a,100,8,1,1\none,2,64,1000000,b,200,16,2,1\ntwo,4,64,1000000,a,100,8,1,2\n"
    )
    frame = drawn_suites(with_suites(names=(), user={"mine": str(path)}))
    assert frame["task_id"].tolist() == ["mine-one", "mine-one", "mine-two"]
    assert set(frame["suite"]) == {"mine"}
    assert frame["group"].tolist() == ["2 ranks", "2 ranks", "4 ranks"]
    assert frame["is_measured"].tolist() == [True, True, False], "plans of replica groups are not measured"


@pytest.mark.parametrize(
    ("columns", "values", "measured"),
    [
        ("host_memory_bytes,pooling", "1000000,sum", False),
        ("tiers,local_world_size,pooling", "true,2,none", False),
        ("tiers,local_world_size,pooling", "true,2,sum", True),
        ("tiers,local_world_size,pooling", "true,4,none", True),
        ("tiers,local_world_size,pooling", "true,1,none", True),
        ("tiers,local_world_size,pooling", "false,2,none", True),
    ],
    ids=["host_memory", "host_tiers", "no_sequence", "one_host", "a_host_is_a_rank", "no_tiers"],
)
def test_tasks_whose_plans_may_be_impossible_to_measure_are_not_measured(tmp_path, columns, values, measured):
    """The judge would leave out such plans, but only after all sharders have solved all tasks."""
    frame = drawn_suites(with_suites(names=(), user={"mine": user_file(tmp_path, columns, values)}))
    assert frame["is_measured"].tolist() == [measured]


def test_a_users_suite_with_columns_of_its_own_stands_beside_the_others(tmp_path):
    user = {"mine": user_file(tmp_path, "host_memory_bytes,pooling,tiers", "1000000,none,true")}
    *others, mine = tasks_from_frame(drawn_suites(with_suites(names=("criteo",), user=user)))
    assert (mine.tables[0].pooling, mine.host_memory_bytes, mine.tiers) == ("none", 1_000_000, True)
    assert others == tasks_from_frame(drawn_suites(with_suites(names=("criteo",))))


def test_the_cluster_of_the_cost_models_says_whether_tiers_are_on_several_hosts(tmp_path):
    path = user_file(tmp_path, "tiers,pooling", "true,none")
    settings = with_suites(names=(), user={"mine": path})
    assert drawn_suites(settings)["is_measured"].all(), "all ranks are on one host"
    models = small_models()
    models.comm.provenance = {"hardware": {"topology": {"gpus_per_host": 2}}}
    assert not draw_suites(settings, models)["is_measured"].any()
    (task,) = tasks_from_frame(draw_suites(settings, models))
    assert task.num_hosts == 2


def user_file(folder, columns, values):
    path = folder / "mine.csv"
    path.write_text(
        "task_id,world_size,batch_size,memory_bytes,table,num_embeddings,embedding_dim,pooling_factor,"
        f"{columns}\none,4,64,1000000,a,100000,8,20,{values}\n"
    )
    return str(path)


def test_a_suite_without_tasks_is_refused():
    with pytest.raises(TaskError, match="'hugectr_t510' has no task"):
        drawn_suites(with_suites(names=("hugectr_t510",)))


def test_two_tasks_of_a_suite_with_the_same_id_are_refused():
    (task,) = (task for task in SETTINGS.public.tasks if task.suite == "criteo")
    twice = dataclasses.replace(with_suites(names=("criteo",)), public=PublicSuiteParams(tasks=(task, task)))
    with pytest.raises(TaskError, match=r"two tasks are called 'kaggle' \(suites: criteo, criteo\); rename"):
        drawn_suites(twice)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"names": ("paper_5",)}, "paper_5"),
        ({"user": {"tight": "x.csv"}}, "'tight' has the name"),
        ({"names": ()}, "at least one suite"),
        ({"names": ("tight", "tight")}, "once"),
    ],
)
def test_impossible_suites_are_refused(changes, told):
    with pytest.raises(ValueError, match=told):
        SuiteParams(**{**SETTINGS.suites.model_dump(), **changes})
