import dataclasses

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from search.settings import WEIGHTS_AND_OPTIMIZER
from search.small_models import small_models

from neuroshard_pipeline.augment import PoolParams
from neuroshard_pipeline.errors import DoesNotFitError, TaskError
from neuroshard_pipeline.evaluation.suite_params import (
    PaperSuiteParams,
    PublicSuiteParams,
    PublicTask,
    ScaleSuiteParams,
    SuiteParams,
    SuiteSettings,
    TightSuiteParams,
)
from neuroshard_pipeline.evaluation.suites import draw_suites
from neuroshard_pipeline.evaluation.tight_tasks import is_tight
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables import tasks_from_frame

DIMS = (8, 32)
SETTINGS = SuiteSettings(
    suites=SuiteParams(
        names=("paper_4", "paper_8", "criteo", "scale", "tight"),
        user={},
        tasks=5,
        batch_size=64,
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
    scale=ScaleSuiteParams(num_tables=(60, 100), world_sizes=(8, 16), row_scale=4096, memory_fill=0.8),
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
    memory=WEIGHTS_AND_OPTIMIZER,
)


@pytest.fixture(scope="module")
def drawn():
    return draw_suites(SETTINGS)


def with_suites(**changes):
    return dataclasses.replace(SETTINGS, suites=SETTINGS.suites.model_copy(update=changes))


def test_every_suite_is_as_asked(drawn):
    assert drawn.groupby("suite", sort=False)["task_id"].nunique().to_dict() == {
        "paper_4": 5, "paper_8": 5, "criteo": 1, "scale": 2, "tight": 5
    }  # fmt: skip
    by_task = drawn.drop_duplicates("task_id").set_index("task_id")
    assert by_task["is_measured"].eq(by_task["world_size"] <= 8).all()
    assert by_task.loc["scale-100-tables-16-ranks", "is_measured"] == np.False_


def test_the_same_seed_draws_the_same_and_another_one_does_not(drawn):
    pd.testing.assert_frame_equal(draw_suites(SETTINGS), drawn)
    assert not draw_suites(with_suites(seed=2)).equals(drawn)


def test_more_tasks_leave_the_first_ones_as_they_are(drawn):
    more = draw_suites(with_suites(tasks=9))
    first = more[more["task_id"].isin(drawn["task_id"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(first, drawn)


def test_papers_groups_hold_their_maximum_dimension(drawn):
    paper = drawn[drawn["suite"].isin(["paper_4", "paper_8"])]
    for group, tables in paper.groupby("group"):
        largest = int(group.split()[-1])
        assert set(tables["embedding_dim"]) == {dim for dim in DIMS if dim <= largest}
    per_task = paper.groupby("task_id").agg(tables=("table", "size"), world_size=("world_size", "first"))
    assert per_task["tables"].between(5 * per_task["world_size"] / 4, 20 * per_task["world_size"] / 4).all()


def test_tables_have_names_of_their_own(drawn):
    own = drawn[~drawn["suite"].isin(["criteo"])]
    assert own["table"].str.startswith("bench_").all()


def test_tight_tasks_fit_no_whole_tables_and_are_solved_by_splitting(drawn):
    for task in tasks_from_frame(drawn[drawn["suite"] == "tight"]):
        largest = max(task.tables, key=lambda table: table.weight_bytes)
        assert largest.weight_bytes > max(task.memory_limits)
        for name in ("size_greedy", "lookup_greedy"):
            with pytest.raises(DoesNotFitError):
                shard(task, small_models(), name)
        plan = shard(task, small_models(), "neuroshard")
        assert max(plan.memory_bytes) <= max(task.memory_limits)


def test_a_roomy_task_is_not_tight(drawn):
    (task,) = tasks_from_frame(drawn[drawn["suite"] == "criteo"])
    roomy = dataclasses.replace(task, memory_bytes=2**30)
    assert not is_tight(roomy, WEIGHTS_AND_OPTIMIZER)
    short = dataclasses.replace(task, memory_bytes=2**10)
    assert not is_tight(short, WEIGHTS_AND_OPTIMIZER)


def test_a_users_suite_is_read_beside_ours(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "task_id,world_size,batch_size,memory_bytes,table,num_embeddings,embedding_dim,pooling_factor\n"
        "one,2,64,1000000,a,100,8,1\none,2,64,1000000,b,200,16,2\ntwo,4,64,1000000,a,100,8,1\n"
    )
    frame = draw_suites(with_suites(names=(), user={"mine": str(path)}))
    assert frame["task_id"].tolist() == ["mine-one", "mine-one", "mine-two"]
    assert set(frame["suite"]) == {"mine"}
    assert frame["group"].tolist() == ["2 ranks", "2 ranks", "4 ranks"]


def test_a_suite_without_tasks_is_refused():
    with pytest.raises(TaskError, match="'hugectr_t510' has no task"):
        draw_suites(with_suites(names=("hugectr_t510",)))


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
