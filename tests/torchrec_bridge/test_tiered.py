"""Modules with tiers (copies of popular rows) train to the losses of the unsharded model, and have its state."""

from __future__ import annotations

import numpy as np
import pytest
from torchrec_bridge.needs_torchrec import QUIET
from torchrec_bridge.ranks import run_ranks
from torchrec_bridge.tiered_exchanges import asked_rows, exchanged_plan
from torchrec_bridge.tiered_pipeline import pipelined_outputs
from torchrec_bridge.tiered_ranks import resumed, trained_with_tiers
from torchrec_bridge.tiered_sequences import SEQUENCES, STEPS, WIDTH, Case, TieredModel, plan_of

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.volumes import plan_volumes
from neuroshard_pipeline.tables.task import COMM_BYTES

pytestmark = [pytest.mark.slow, *QUIET]

CASES = {
    2: [
        Case("rowwise_adagrad", "table_wise", True, 2),
        Case("adagrad", "column_wise", True, 1),
        Case("rowwise_adagrad", "row_wise", False, 1),
        Case("sgd", "row_wise", True, 1, has_tiers=False),
    ],
    4: [
        Case("rowwise_adagrad", "table_wise", False, 2),
        Case("sgd", "column_wise", True, 2),
        Case("sgd", "row_wise", False, 2, comm_precision="fp16"),
        Case("sgd", "row_wise", False, 1),  # more hosts than ranks of a host
    ],
}


@pytest.fixture(scope="module", params=CASES)
def trained(request, tmp_path_factory) -> tuple[int, list[list]]:
    """The answers of all ranks; one start of the processes trains all cases in turn."""
    world_size, folder = request.param, tmp_path_factory.mktemp("ranks")
    return world_size, run_ranks(world_size, folder, trained_with_tiers, CASES[world_size])


def test_losses_equal_those_of_the_unsharded_model(trained):
    world_size, answers = trained
    losses = np.array([[losses for losses, _ in answer] for answer in answers])
    assert losses.shape == (world_size, len(CASES[world_size]), STEPS, 2)
    for at, case in enumerate(CASES[world_size]):
        rtol = 1e-4 if case.comm_precision == "fp32" else 5e-3
        np.testing.assert_allclose(losses[:, at, :, 0], losses[:, at, :, 1], rtol=rtol)
    assert (np.ptp(losses[..., 0], axis=2) > 0.01).all()


def test_training_resumes_with_the_saved_weights_and_the_state_of_the_optimizer(tmp_path):
    """Exactly with the same plan; up to rounding with a plan for one host, other cuts and whole cold tables."""
    before = Case("rowwise_adagrad", "row_wise", False, 1)
    after = [before, Case("rowwise_adagrad", "table_wise", True, 2)]
    for same, other in run_ranks(2, tmp_path, resumed, before, after):
        assert [going_on for going_on, _ in same] == [loaded for _, loaded in same]
        np.testing.assert_allclose(*zip(*other, strict=True), rtol=1e-5)
        assert np.ptp([going_on for going_on, _ in same]) > 0.01


def test_host_rows_are_exchanged_inside_hosts_and_reduced_among_ranks_of_the_same_place(trained):
    """Collectives of the last step: an id takes 8 bytes, a row 4 per column in each exchange (2 in half precision)."""
    world_size, answers = trained
    for at, case in enumerate(CASES[world_size]):
        num_hosts = world_size // case.ranks_per_host
        if num_hosts == 1 or not case.has_tiers:  # no host rows, and no collective of some of the ranks
            assert {call.ranks for answer in answers for call in answer[at][1]} == {tuple(range(world_size))}
            continue
        num_host = sum(cuts.host_rows for _, _, cuts in SEQUENCES.values())
        buffer = -(-num_host // case.ranks_per_host) * WIDTH * 4
        asked, row_bytes = asked_rows(case, world_size), COMM_BYTES[case.comm_precision] * WIDTH
        for rank, answer in enumerate(answers):
            first, place = rank - rank % case.ranks_per_host, rank % case.ranks_per_host
            host = tuple(range(first, first + case.ranks_per_host))
            inside = [call for call in answer[at][1] if call.ranks == host and call.name == "all_to_all_single"]
            counts, ids, forward, backward = (np.array(call.sent_bytes) for call in inside)
            others = np.arange(case.ranks_per_host) != place
            np.testing.assert_array_equal(counts, 8 * others)
            np.testing.assert_array_equal(ids, 8 * asked[rank] * others)
            np.testing.assert_array_equal(forward, row_bytes * asked[first : first + len(host), place] * others)
            np.testing.assert_array_equal(backward, row_bytes * asked[rank] * others)
            assert all(call.crossing_bytes(case.ranks_per_host) == 0 for call in inside)
            peers = tuple(range(place, world_size, case.ranks_per_host))
            sums = [call for call in answer[at][1] if call.ranks == peers and call.name == "all_reduce"]
            *sums_of_hot_rows, sum_of_hosts = sums
            assert len(sums_of_hot_rows) == (case.ranks_per_host == 1)  # the peers are then all ranks
            assert sum(sum_of_hosts.sent_bytes) == pytest.approx(2 * buffer * (num_hosts - 1) / num_hosts)
            assert sum_of_hosts.inside_bytes(case.ranks_per_host) == 0


def test_hot_rows_cost_one_reduction(trained):
    world_size, answers = trained
    num_hot = sum(cuts.hot_rows for _, _, cuts in SEQUENCES.values())
    for answer in answers:
        for (_, calls), case in zip(answer, CASES[world_size], strict=True):
            if case.ranks_per_host == 1:
                continue  # the reduction of host rows has the same ranks
            found = [call for call in calls if call.name == "all_reduce" and len(call.ranks) == world_size]
            (sent,) = [sum(call.sent_bytes) for call in found]
            assert sent == pytest.approx(2 * num_hot * WIDTH * 4 * (world_size - 1) / world_size)


def test_exchanged_bytes_are_the_volumes_of_the_plan(trained):
    """The volumes are expectations for evenly spread ids. The ids here are few, so their bytes deviate a little."""
    world_size, answers = trained
    for at, case in enumerate(CASES[world_size]):
        if case.index_dedup or world_size == case.ranks_per_host:
            continue
        plan, others = exchanged_plan(case, world_size), world_size - case.ranks_per_host
        expected = plan_volumes(plan.task, plan.shards, plan.ranks)
        # TorchRec's two modules tell every rank how many lengths, ids and samples follow.
        sizes = 8 * world_size * 2 * 3
        calls = [call for answer in answers for call in answer[at][1] if call.name == "all_to_all_single"]
        sent = sum(sum(call.sent_bytes) for call in calls) - 8 * world_size * (case.ranks_per_host - 1)
        across = sum(call.crossing_bytes(case.ranks_per_host) for call in calls)
        assert sent - sizes * (world_size - 1) == pytest.approx(
            sum(of[kind].sum() for of in (expected.inside, expected.across) for kind in ("ids", "outputs")), rel=0.05
        )
        of_plan = sum(expected.across[kind].sum() for kind in ("ids", "outputs"))
        assert across - sizes * others == pytest.approx(of_plan, rel=0.1)


def test_torchrecs_pipeline_trains_as_steps_one_after_the_other(tmp_path):
    for plain, pipelined in run_ranks(2, tmp_path, pipelined_outputs, Case("sgd", "row_wise", False, 1)):
        np.testing.assert_allclose(pipelined, plain, rtol=1e-6)
        assert np.ptp(plain) > 0.01


def test_a_plan_with_tiers_points_to_the_module_that_executes_it():
    model = TieredModel()
    plan = plan_of(model, Case("sgd", "table_wise", False, 1), 2)
    with pytest.raises(PlanError, match=r"table 'all_tiers' has tiers.*call torchrec_bridge.tiered.put_tiers"):
        plan.to_torchrec(model)
