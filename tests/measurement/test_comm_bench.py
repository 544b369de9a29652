from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measurement.team_functions import WORLD, exchange_of_rank, reduce_of_rank
from neuroshard_pipeline.measurement.comm_bench import batch_split, forward_splits, set_up_rank
from neuroshard_pipeline.tables.samples import REDUCTIONS, CommSample, ReductionSample
from neuroshard_pipeline.workers import LocalTeam

UNEVEN = CommSample("uneven", 11, (4, 12, 8), (0.0, 0.0, 0.0))


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_the_batch_is_split_as_evenly_as_possible(batch_size, world_size):
    split = batch_split(batch_size, world_size)
    assert sum(split) == batch_size
    assert max(split) - min(split) <= 1


@given(st.integers(1, 500), st.lists(st.integers(0, 300), min_size=1, max_size=9))
def test_what_one_rank_sends_another_receives(batch_size, dim_sums):
    sample = CommSample("any", batch_size, tuple(dim_sums), (0.0,) * len(dim_sums))
    splits = [forward_splits(sample, rank) for rank in range(len(dim_sums))]
    for sender, (send, _) in enumerate(splits):
        assert sum(send) == batch_size * dim_sums[sender]
        for receiver, (_, receive) in enumerate(splits):
            assert send[receiver] == receive[sender]


def test_the_exchange_delivers_each_ranks_part_to_each_rank(comm_params, tmp_path):
    team = LocalTeam(WORLD, exchange_of_rank, lambda: (comm_params(), str(tmp_path / "store")))
    answers = team.ask(UNEVEN, 60.0)
    team.kill()
    for rank, (forward, backward) in enumerate(answers):
        send, receive = forward_splits(UNEVEN, rank)
        assert forward == pytest.approx([x + rank / 100 for x, size in enumerate(receive) for _ in range(size)])
        assert backward == pytest.approx([x + rank / 100 for x, size in enumerate(send) for _ in range(size)])


def test_early_ranks_pay_for_the_late_one_forward_but_not_backward(comm_params, tmp_path):
    late = CommSample("late", 11, (4, 12, 8), (0.0, 300.0, 0.0))
    team = LocalTeam(WORLD, set_up_rank, lambda: (WORLD, [UNEVEN, late], comm_params(), str(tmp_path / "store")))
    answers = team.ask((0, 1), 60.0)
    team.kill()
    even, skewed = zip(*answers, strict=True)
    assert all(timing.error is None for timing in even + skewed)
    # The late rank enters 300 ms after the others, so they cannot have its data earlier.
    assert min(skewed[0].forward_ms, skewed[2].forward_ms) >= 299
    assert skewed[1].forward_ms < min(skewed[0].forward_ms, skewed[2].forward_ms)
    assert all(timing.backward_ms < 299 for timing in skewed)


def test_a_sample_beyond_the_buffer_fails_on_every_rank_and_the_next_one_runs(comm_params, tmp_path):
    big = CommSample("big", 2**20, (4, 4, 4), (0.0, 0.0, 0.0))
    team = LocalTeam(WORLD, set_up_rank, lambda: (WORLD, [big, UNEVEN], comm_params(), str(tmp_path / "store")))
    for first, second in team.ask((0, 1), 60.0):
        assert "buffer_bytes" in first.error
        assert second.error is None
    team.kill()


def test_reductions_deliver_sums_and_shares(comm_params, tmp_path):
    team = LocalTeam(WORLD, reduce_of_rank, lambda: (comm_params(), str(tmp_path / "store")))
    scattered, gathered, reduced = (team.ask(collective, 60.0) for collective in REDUCTIONS)
    team.kill()
    total = [WORLD * number + 100 * sum(range(WORLD)) for number in range(2 * WORLD)]
    assert [share for _, share in scattered] == [total[2 * rank : 2 * rank + 2] for rank in range(WORLD)]
    everyone = [10 + rank + 10 * second for rank in range(WORLD) for second in range(2)]
    assert [buffer for buffer, _ in gathered] == [everyone] * WORLD
    assert [buffer for buffer, _ in reduced] == [total] * WORLD


def test_reductions_that_these_ranks_cannot_run_fail_on_every_rank_and_the_others_have_costs(comm_params, tmp_path):
    good = [ReductionSample(collective, collective, 1200, WORLD, 1) for collective in REDUCTIONS]
    bad = [
        ReductionSample("big", "all_reduce", 3 * 2**20, WORLD, 1),
        ReductionSample("uneven", "all_gather", 16, WORLD, 1),
        ReductionSample("apart", "all_gather", 1200, WORLD, 3),
    ]
    team = LocalTeam(WORLD, set_up_rank, lambda: (WORLD, [*bad, *good], comm_params(), str(tmp_path / "store")))
    answers = team.ask(tuple(range(len(bad) + len(good))), 60.0)
    team.kill()
    for timings in answers:
        assert all(timing.error is None and timing.forward_ms > 0 for timing in timings[len(bad) :])
        big, uneven, apart = timings[: len(bad)]
        assert "buffer_bytes" in big.error
        assert "3 equal shares" in uneven.error
        assert "needs 3 hosts" in apart.error
        assert all(timing.permanent for timing in (big, uneven, apart))
