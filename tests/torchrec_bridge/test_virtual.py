"""Virtual ranks train like an unsharded module, and replays follow the logs of the ranks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec_bridge.truth_ranks import unsharded_rows
from torchrec_bridge.virtual_ranks import set_up_alternating, set_up_collectives, set_up_steps, set_up_training

from neuroshard_pipeline.lab.network import collective_us
from neuroshard_pipeline.lab.network_presets import ethernet, network_preset
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.ranks import RankError, rank_team
from neuroshard_pipeline.torchrec_bridge.train_check.batches import drawn_batches
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import (
    BACKWARD_PARTS,
    INPUT_DIST_PARTS,
    REPLAYED_PARTS,
    STEP_PARTS,
    measure_steps,
    task_batches,
)
from neuroshard_pipeline.torchrec_bridge.virtual.log import Collective, Event, StepLog
from neuroshard_pipeline.torchrec_bridge.virtual.networks import modelled_network
from neuroshard_pipeline.torchrec_bridge.virtual.own import step_times
from neuroshard_pipeline.torchrec_bridge.virtual.replay import Turn, replayed, replayed_steps, slowdowns, steadied

pytestmark = QUIET

WORLD, PER_HOST = 4, 2
TABLES = [
    Table("a", 301, 32, 5.0, num_features=2),
    Table("b", 50, 4, 1.0),
    Table("c", 2000, 12, 2.5, module="other", is_weighted=True),
    Table("s", 90, 12, 1.5, pooling="none"),
]
TASK = ShardingTask(TABLES, WORLD, batch_size=32, memory_bytes=2**30, local_world_size=PER_HOST)
BATCHES = drawn_batches(TABLES, 32, num_batches=2, seed=0)
PARAMS = StepParams(
    backend="gloo",
    threads=1,
    timeout_s=100,
    learning_rate=0.05,
    num_batches=2,
    rounds=1,
    warmup_steps=1,
    steps_per_round=2,
    most_plans_held=2,
    seed=0,
)
A, B, C, S = TABLES


def plan_of(name: str, *placed: tuple[Shard, int]) -> Plan:
    shards, ranks = zip(*placed, strict=True)
    return Plan(TASK, shards, ranks, name, compute_device="cpu")


PLANS = [
    plan_of(
        "columns and replicas",
        *((Shard(A, 0, 20), 0), (Shard(A, 20, 12), 3), (whole(C), 2)),
        *((Shard(S, 4 * place, 4), place) for place in range(3)),
        *((whole(B, "data_parallel"), rank) for rank in range(WORLD)),
    ),
    plan_of(
        "rows",
        *zip(row_shards(A, "table_row_wise", PER_HOST), (2, 3), strict=True),
        *zip(row_shards(C, "row_wise", WORLD), range(WORLD), strict=True),
        *zip(row_shards(S, "row_wise", WORLD), range(WORLD), strict=True),
        (whole(B), 0),
    ),
]


@pytest.mark.slow
def test_virtual_ranks_train_like_an_unsharded_module():
    expected = unsharded_rows(TASK, BATCHES, PARAMS.learning_rate)
    with rank_team(WORLD, set_up_training, (WORLD, PER_HOST, BATCHES, PARAMS), PARAMS) as team:
        for plan, through_copies in zip(PLANS, (False, True), strict=True):
            answers = team.ask((plan, through_copies), PARAMS.timeout_s)
            for feature, rows in expected.items():
                found = np.concatenate([np.array(own[feature]) for own in answers])
                np.testing.assert_allclose(found, np.array(rows), rtol=1e-5, atol=1e-5, err_msg=feature)


@pytest.mark.slow
def test_replayed_steps_have_the_rows_of_measured_steps_for_every_network_and_an_error_for_a_plan_that_fails():
    # A table name with a dot makes torch refuse the module.
    broken = dataclasses.replace(TASK, tables=[Table("a.b", 10, 4, 1.0)], task_id="broken")
    plans = [*PLANS, Plan(broken, (whole(broken.tables[0]),), (0,), "dotted", compute_device="cpu")]
    networks = {name: modelled_network(ethernet(speed, PER_HOST)) for name, speed in (("fast", 100.0), ("slow", 0.1))}
    frame = measure_steps(plans, task_batches(plans, PARAMS), PARAMS, networks=networks)
    (error,) = frame["error"].dropna()
    assert "broken: the measurement under the plan of dotted stopped" in error
    frame = frame[frame["error"].isna()]
    assert len(frame) == len(PLANS) * WORLD * 2 * len(networks)
    np.testing.assert_allclose(frame[list(STEP_PARTS)].sum(axis=1), frame["step_ms"])
    np.testing.assert_allclose(frame[list(REPLAYED_PARTS)].sum(axis=1), frame["step_ms"])
    of_input = frame[["input_dist_ms", *INPUT_DIST_PARTS]].to_numpy().T
    assert (of_input[1] > 0).all()
    assert (of_input[2] <= frame["waiting_ms"] + 1e-9).all()
    assert (of_input[0] - of_input[1] >= of_input[2] - 1e-9).all()
    assert (frame[list(BACKWARD_PARTS)].sum(axis=1) < frame["backward_ms"]).all()
    fast, slow = (frame[frame["network"] == name].reset_index() for name in networks)
    np.testing.assert_array_equal(fast["computed_ms"], slow["computed_ms"])
    saved_ms = slow["step_ms"] - fast["step_ms"]
    # A rank that other programs delay may compute for longer than its transfers take on either network.
    assert saved_ms.min() > -1e-9
    assert saved_ms.sum() > 0


@pytest.mark.slow
def test_collectives_give_the_same_results_through_copies():
    with rank_team(3, set_up_collectives, (3, PARAMS), PARAMS) as team:
        through, without = (team.ask(copied, PARAMS.timeout_s) for copied in (True, False))
    assert [found for found, _ in through] == [found for found, _ in without]
    assert [log.structure for _, log in through] == [log.structure for _, log in without]
    assert without[0][0][5:7] == [[6.0] * 3, [7.0]]


def log_of(*events: tuple[str, float, int], collectives: list[Collective]) -> StepLog:
    return StepLog(tuple(Event(*event) for event in events), tuple(collectives))


def test_a_collective_starts_with_its_last_rank_and_runs_beside_computation():
    gather = Collective("all_gather", "0", (0, 1), (2**20,))
    both = [
        log_of(("mark", 0, 0), ("start", 1e-3, 0), ("wait", 50e-3, 0), ("mark", 2e-3, 1), collectives=[gather]),
        log_of(("mark", 0, 0), ("start", 7e-3, 0), ("wait", 0, 0), ("mark", 3e-3, 1), collectives=[gather]),
    ]
    network = network_preset("h100-ib400")
    transfer_ms = float(collective_us("all_gather", 2**20, 2, 1, network)) / 1e3
    first, second = replayed(both, modelled_network(network))
    assert first.marks_ms == pytest.approx([0, 53])  # the collective is done before the rank needs it
    assert second.marks_ms == pytest.approx([0, 7 + transfer_ms + 3])
    assert (second.computed_ms, second.transfer_ms, second.waiting_ms) == pytest.approx((10, transfer_ms, 0))


def test_a_rank_that_comes_early_waits_and_collectives_of_one_rank_follow_each_other():
    def network(collectives: list[Collective], starts_ms: np.ndarray) -> np.ndarray:
        return np.full(len(starts_ms), starts_ms.max() + collectives[0].sent_bytes[0])

    pair, all_ranks = Collective("all_reduce", "pair", (1, 2), (5,)), Collective("all_reduce", "0", (0, 1, 2), (10,))
    logs = [
        log_of(("mark", 0, 0), ("start", 1e-3, 0), ("wait", 0, 0), ("mark", 0, 1), collectives=[all_ranks]),
        *(
            log_of(
                *(("mark", 0, 0), ("start", start_s, 0), ("start", 0, 1), ("wait", 0, 0), ("wait", 0, 1)),
                ("mark", 0, 1),
                collectives=[pair, all_ranks],
            )
            for start_s in (2e-3, 4e-3)
        ),
    ]
    early, *others = replayed(logs, network)
    assert early.marks_ms == pytest.approx([0, 4 + 5 + 10])
    assert (early.transfer_ms, early.waiting_ms) == pytest.approx((10, 8))
    assert [rank.marks_ms[-1] for rank in others] == pytest.approx([19, 19])


def test_a_single_disturbed_step_does_not_count():
    steps = [[log_of(("mark", 0, 0), ("mark", cpu_s, 1), collectives=[])] for cpu_s in (2e-3, 1e-3, 9e-3, 2e-3, 2e-3)]
    (steady,) = steadied(steps, [1.0] * len(steps))
    assert [event.cpu_s for event in steady.events] == pytest.approx([0, 2e-3])
    (steady,) = steadied(steps, [1.0, 1.0, 9.0, 1.0, 4.0])
    assert [event.cpu_s for event in steady.events] == pytest.approx([0, 1e-3])


def turns_of(rounds: int, plans: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(plans) for _ in range(rounds)])


@given(costs=st.lists(st.floats(0.1, 10), min_size=1, max_size=8), rounds=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_steady_machine_has_its_usual_speed_in_every_turn(costs, rounds, seed):
    takers = turns_of(rounds, len(costs), seed)
    assert slowdowns(takers, np.take(costs, takers)) == pytest.approx(np.ones(len(takers)))


@given(slower=st.floats(0.3, 3), begins=st.integers(8, 30), seed=st.integers(0, 99))
def test_the_times_of_a_machine_that_becomes_slower_or_faster_give_the_costs_of_plans(slower, begins, seed):
    takers, costs = turns_of(4, 10, seed), np.geomspace(1, 5, 10)
    speed = np.where(np.arange(len(takers)) < begins, 1.0, slower)
    times = np.take(costs, takers) * speed
    found = times / slowdowns(takers, times) / np.take(costs, takers)
    of_plans = np.array([np.median(found[takers == number]) for number in range(10)])
    assert of_plans == pytest.approx(np.full(10, of_plans[0]), rel=0.01)


def test_noise_that_neighbouring_turns_share_counts_less():
    """All plans cost the same, and the machine's speed drifts."""
    errors = []
    for seed in range(20):
        rng, takers = np.random.default_rng(seed), turns_of(8, 12, seed)
        times = np.exp(np.cumsum(rng.normal(0, 0.08, len(takers))) + rng.normal(0, 0.03, len(takers)))
        kinds = (times, times / slowdowns(takers, times))
        errors.append([np.std([np.log(np.median(own[takers == n])) for n in range(12)]) for own in kinds])
    before, after = np.mean(errors, axis=0)
    assert after < 0.5 * before


def test_steps_of_plans_that_take_turns_are_replayed_at_the_same_speed():
    """From the third turn to the eighth, the machine is half as fast. The plans cost 2, 4 and 6 ms."""
    turns = [Turn(at // 3, taker) for at, taker in enumerate([0, 1, 2, 1, 0, 2, 2, 0, 1, 0, 2, 1])]
    seconds = [2e-3 * (1 + turn.taker) * (2 if 2 <= at < 8 else 1) for at, turn in enumerate(turns)]
    steps = [[log_of(("mark", 0, 0), ("mark", cpu_s, 1), collectives=[])] for cpu_s in seconds]
    found = dict(replayed_steps(steps, turns, modelled_network(network_preset("h100-ib400"))))
    last = [found[number][0].marks_ms[-1] for number in range(len(steps))]
    assert last == pytest.approx([2.0 * (1 + turn.taker) for turn in turns], rel=0.02)


def test_equal_steps_of_even_and_of_odd_rounds_have_times_of_their_own():
    """The second plan takes 10 % longer in the third of four rounds; the first one shows that the machine does not."""
    turns = [Turn(at // 2, at % 2) for at in range(8)]
    steps = [
        [log_of(("mark", 0, 0), ("mark", 1.1e-3 if turn == Turn(2, 1) else 1e-3, 1), collectives=[])] for turn in turns
    ]
    found = dict(replayed_steps(steps, turns, modelled_network(network_preset("h100-ib400"))))
    last = [found[number][0].marks_ms[-1] for number in range(8)]
    assert last == pytest.approx([1.0, 1.05, 1.0, 1.0] * 2, rel=0.01)


def test_logs_that_do_not_match_are_refused():
    logs = [
        log_of(("mark", 0, 0), ("start", 0, 0), ("wait", 0, 0), collectives=[Collective("barrier", "0", (0, 1), (0,))]),
        log_of(("mark", 0, 0), collectives=[]),
    ]
    with pytest.raises(RankError, match="did not start the same collectives"):
        replayed(logs, modelled_network(network_preset("h100-ib400")))


@pytest.mark.slow
def test_steps_of_an_own_function_cost_what_the_network_says():
    networks = {name: ethernet(gbit, 1) for name, gbit in (("fast", 100.0), ("slow", 1.0))}
    times = step_times(set_up_steps, 2, networks, (2**20,), steps=3)
    assert len(times) == len(networks) * 3 * 2
    np.testing.assert_allclose(times[list(REPLAYED_PARTS)].sum(axis=1), times["step_ms"])
    of_network = {name: own["step_ms"].to_numpy() for name, own in times.groupby("network")}
    fast, slow = (float(collective_us("all_reduce", 2**22, 2, 2, networks[name])) / 1e3 for name in networks)
    np.testing.assert_allclose(of_network["slow"] - of_network["fast"], slow - fast)
    with pytest.raises(RankError, match="step 0 stopped: worker 1 failed: ValueError: nothing to reduce"):
        step_times(set_up_steps, 2, networks, (0,))


@pytest.mark.slow
def test_steps_of_an_own_function_that_differ_keep_their_cost():
    times = step_times(set_up_alternating, 1, {"fast": ethernet(100, 1)}, steps=6)
    light, heavy = (times[times["step"] % 2 == part]["computed_ms"] for part in range(2))
    assert heavy.min() > 5 * light.max()
