"""Plans of column-wise, row-wise and replicated tables, measured with FBGEMM's kernels and gloo on two ranks."""

import pytest
from measurement.conftest import COMM, COMPUTE

from neuroshard_pipeline.evaluation.campaigns import Campaigns
from neuroshard_pipeline.evaluation.totals import MEASURED_PARTS, PARTS_OF_ALL, plan_totals
from neuroshard_pipeline.measurement import CommCampaign, CommMeasureParams, ComputeCampaign, ComputeMeasureParams
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

from .measure_in_memory import measure_plans

A, B, C = (Table(name, 2000, 16, 3.0) for name in "abc")
HALF = Table("half", 1000, 8, 2.0, data_type="fp16")
SEQUENCE = Table("sequence", 500, 8, 4.0, pooling="none", module="sequences")
TASK = ShardingTask([A, B, C, HALF, SEQUENCE], 2, 256, 2**30, task_id="types")


@pytest.fixture(scope="module")
def measured():
    """Measured costs of a plan with several types, and of one that is column-wise only."""
    mixed = [
        *((shard, rank) for rank, shard in enumerate(row_shards(A, "row_wise", 2))),
        *((whole(B, "data_parallel"), rank) for rank in range(2)),
        (Shard(C, 0, 8), 0),
        (Shard(C, 8, 8), 1),
        (whole(HALF), 1),
        *((shard, rank) for rank, shard in enumerate(row_shards(SEQUENCE, "row_wise", 2))),
    ]
    plans = [
        Plan(TASK, *map(tuple, zip(*mixed, strict=True)), "mixed"),
        Plan(TASK, tuple(map(whole, TASK.tables)), (0, 1, 0, 1, 0), "column-wise"),
    ]
    compute, comm = ComputeMeasureParams(**COMPUTE), CommMeasureParams(**COMM)
    campaigns = Campaigns(ComputeCampaign(compute, 0), CommCampaign(comm, 0))
    return measure_plans(plans, campaigns)[0]


def test_every_part_that_a_plan_has_is_measured(measured):
    parts = measured.set_index("sharder").filter(like="measured_")
    mixed, plain = parts.loc["mixed"], parts.loc["column-wise"]
    assert (mixed[[f"measured_{part}_ms" for part in MEASURED_PARTS]] > 0).all(axis=None)
    assert (plain[[f"measured_{part}_ms" for part in PARTS_OF_ALL]] > 0).all(axis=None)
    assert plain["measured_reduction_ms"].isna().all()
    assert parts[["measured_input_dist_ms", "measured_module_ms"]].isna().all(axis=None)


def test_both_plans_have_a_measured_cost(measured):
    totals = plan_totals(measured).set_index("sharder")
    assert totals["measured_ms"].notna().all()
    largest = measured.filter(like="measured_").sum(axis=1).groupby(measured["sharder"]).max()
    assert totals["measured_ms"].to_dict() == pytest.approx(largest.to_dict())
