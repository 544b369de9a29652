"""Plans of benchmarks/tiers/fewest_bytes.py, which send the fewest bytes between hosts.

Their tasks are those of benchmarks/tiers/sequence_tasks.py. Their bytes are compared with the proved lower bound of
`crossing_bound`.
"""

from dataclasses import replace

import pytest
from crossing_bound import crossing_bound
from fewest_bytes import plan_with_fewest_bytes
from row_popularity import POPULARITIES
from sequence_tasks import SCALES, judged, sequence_task
from tier_costs import bytes_of

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.tiers import cuts_of


@pytest.fixture(scope="module")
def models():
    return load_cost_models("h100")


@pytest.mark.parametrize("local", [8, 2])
@pytest.mark.parametrize("popularity", POPULARITIES)
def test_the_plan_of_fewest_bytes_comes_close_to_the_bound_and_never_below_it(popularity, local, models):
    source = sequence_task(popularity, 8, local, SCALES["gloo"])
    task = replace(source.task, memory_bytes=2**40)
    plan = plan_with_fewest_bytes(task, source.curves, models)
    of_ranks, shards = judged(plan, source.sources)
    if local == 8:  # with one host, every rank counts as a host
        of_ranks = replace(of_ranks, local_world_size=1)
    across = bytes_of(of_ranks, shards, plan.ranks).across
    bound = crossing_bound(task, source.popularities, default_memory())
    assert bound.least_bytes * 0.999 <= across <= bound.least_bytes * 1.02
    assert cuts_of(plan.task)


@pytest.mark.parametrize("popularity", POPULARITIES)
def test_row_wise_tables_send_what_the_bound_says_of_plans_without_copies(popularity):
    source = sequence_task(popularity, 8, 4, SCALES["gloo"])
    placed = [place for table in source.task.tables for place in enumerate(row_shards(table, "row_wise", 8))]
    ranks, shards = zip(*placed, strict=True)
    bound = crossing_bound(source.task, source.popularities, default_memory())
    sent = bytes_of(source.task, shards, ranks)
    assert sent.across == pytest.approx(bound.sharded_bytes, rel=0.01)  # the bound leaves out the lengths of bags
    deduplicated = bytes_of(replace(source.task, index_dedup=True), shards, ranks)
    no_copies = crossing_bound(
        replace(source.task, memory_bytes=1), source.popularities, default_memory(), index_dedup=True
    )
    assert deduplicated.across == pytest.approx(no_copies.least_bytes, rel=0.03)
    assert deduplicated.across < sent.across


def test_less_memory_means_fewer_copies(models):
    source = sequence_task("published", 8, 4, SCALES["gloo"])
    plenty = plan_with_fewest_bytes(replace(source.task, memory_bytes=2**40), source.curves, models)
    used = max(plenty.memory_bytes)
    scarce = plan_with_fewest_bytes(replace(source.task, memory_bytes=used - 1), source.curves, models)
    hot = [sum(cuts.hot_rows for cuts in cuts_of(plan.task).values()) for plan in (plenty, scarce)]
    assert hot[1] < hot[0]
    across = [bytes_of(plan.task, plan.shards, plan.ranks).across for plan in (plenty, scarce)]
    assert across[1] == pytest.approx(across[0])
