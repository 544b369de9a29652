"""A user's bandwidths between ranks and the order of ranks that suits them."""

import pandas as pd
import pytest
from conftest import ROOT, run_pipeline

from neuroshard_pipeline.pipelines.preflight import PreflightError
from neuroshard_pipeline.search.rank_order import collectives_ms, ms_per_byte_of
from neuroshard_pipeline.tables.bandwidth_file import read_bandwidths


def plan_task(links=None):
    task = {
        "tables": str(ROOT / "data/01_raw/criteo_kaggle.csv"),
        "world_size": 4,
        "links": links,
        "sharder": "size_greedy",
    }
    return {"plan": {"task": task}}


def newest(folder, name):
    return sorted((folder / name).rglob(name.rpartition("/")[2]))[-1]


def dim_sums(folder):
    plan = pd.read_parquet(newest(folder, "07_model_output/plan.parquet"))
    return plan.groupby("rank")["embedding_dim"].sum().reindex(range(4), fill_value=0)


def test_ranks_are_ordered_so_that_collectives_are_cheaper_on_a_users_links(finished_run, tmp_path):
    """The links from the rank with the most columns are made slow; after ordering, this rank has the fewest."""
    run_pipeline(finished_run, "plan", params=plan_task())
    found = dim_sums(finished_run)
    slow = int(found.argmax())
    path = tmp_path / "links.csv"
    path.write_text("\n".join("10,10,10,10" if rank == slow else "300,300,300,300" for rank in range(4)))
    run_pipeline(finished_run, "plan", params=plan_task(str(path)))
    ordered = dim_sums(finished_run)
    links = ms_per_byte_of(read_bandwidths(path, 4), 4)
    assert found.max() > found.min()
    assert sorted(ordered) == sorted(found)
    assert ordered[slow] == found.min()
    before, after = collectives_ms(found, links, 64), collectives_ms(ordered, links, 64)
    assert after < before
    words = newest(finished_run, "08_reporting/plan_explanation.txt").read_text()
    assert "other sharders on this task, predicted: dim_greedy" in words
    assert "other sharders on this task" in newest(finished_run, "08_reporting/plan.html").read_text()
    assert f"so that both collectives take {after:.4g} instead of {before:.4g} ms" in words


def test_a_bad_file_of_links_is_refused_before_the_run(finished_run, tmp_path):
    path = tmp_path / "links.csv"
    path.write_text("0,1\n1,0\n")
    with pytest.raises(PreflightError, match="world_size is 4"):
        run_pipeline(finished_run, "plan", params=plan_task(str(path)))
