"""neuroshard_plus over all sharding types: against brute force on tiny tasks, and its behaviour on larger ones."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from search.settings import LOCAL_SEARCH, QUICK, QUICK_SEARCH, WEIGHTS_AND_OPTIMIZER
from search.small_step import step_models
from search.tasks import random_tables

from neuroshard_pipeline.cost_models import load_cost_models
from neuroshard_pipeline.errors import DoesNotFitError
from neuroshard_pipeline.search.plan import Placement, Plan
from neuroshard_pipeline.search.polish import polished
from neuroshard_pipeline.search.price import placement_cost_ms, placement_costs, price_plan
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.spread import column_problem, joined, spread_tables
from neuroshard_pipeline.search.spread_choice import SpreadChoice
from neuroshard_pipeline.sharders import whole_step
from neuroshard_pipeline.sharders.neuroshard import NeuroShard
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.constraints import Constraints
from neuroshard_pipeline.tables.step_work import torchrec_type
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

PLUS = NeuroShard(QUICK_SEARCH, LOCAL_SEARCH.model_copy(update={"max_rounds": 10}))


def plan_of(task: ShardingTask, models, sharder: NeuroShard = PLUS) -> Plan:
    problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
    return price_plan(problem, sharder.shard(problem, np.random.default_rng(0)), sharder.name)


def types_of(plan: Plan) -> dict[str, str]:
    return {shard.table.name: shard.sharding_type for shard in plan.shards}


def cheapest_of_whole_tables_ms(task: ShardingTask, models) -> float:
    """The lowest price over all types of all tables and all ranks of the column-wise ones, without column splits."""
    problem = Problem(task, models, WEIGHTS_AND_OPTIMIZER)
    tried = []
    for types in itertools.product(*(usable_types(table, problem) for table in task.tables)):
        chosen = {t.name: kind for t, kind in zip(task.tables, types, strict=True) if kind != "column_wise"}
        spread = spread_tables(chosen, task, WEIGHTS_AND_OPTIMIZER)
        columns = column_problem(problem, spread)
        count = 0 if columns is None else len(columns.units)
        ways = itertools.product(range(task.world_size), repeat=count)
        tried += [joined(problem, columns.whole_placement(ranks) if columns else None, spread) for ranks in ways]
    return min(cost_ms for cost_ms, _ in placement_costs(problem, tried))


@pytest.mark.parametrize("seed", [1, 3])
def test_a_plan_of_few_tables_costs_at_most_what_the_best_of_all_types_costs(seed):
    rng = np.random.default_rng(seed)
    task = ShardingTask(random_tables(rng, 4), 2, 2048, 2**40)
    models = step_models(seed, ms_per_mib=float(rng.choice([0.01, 0.2])))
    assert plan_of(task, models).predicted_cost_ms <= 1.001 * cheapest_of_whole_tables_ms(task, models)


def test_only_the_sequence_table_that_no_rank_can_hold_is_cut():
    """Cutting all tables of the module alike would balance the ranks, but send every id to all of them."""
    large = Table("large", 4 * 10**7, 128, 5.0, pooling="none")
    tables = [large, *(Table(f"t{at}", 10_000, 128, 20.0, pooling="none") for at in range(8))]
    constraints = Constraints(sharding_types=("column_wise",))
    task = ShardingTask(tables, 4, 2**16, large.weight_bytes * 3 // 4, constraints=constraints)
    models = load_cost_models("h100")
    plan = plan_of(task, models)
    assert {shard.table.name for shard in plan.shards if torchrec_type(shard) == "column_wise"} == {"large"}
    alike = tuple(Shard(table, start, 32) for table in tables for start in range(0, 128, 32))
    all_cut = Placement(alike, (0, 1, 2, 3) * len(tables))
    assert plan.predicted_cost_ms < 0.9 * placement_cost_ms(Problem(task, models, WEIGHTS_AND_OPTIMIZER), all_cut)


@pytest.mark.parametrize("seed", range(2))
def test_a_plan_with_sequence_tables_costs_at_most_a_tenth_more_than_the_best_of_all_types(seed):
    """Two of the four tables are sequence tables."""
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, 4)
    sequences = [replace(table, pooling="none", pooling_factor=20.0, unique_rows=None, reuse=None) for table in tables]
    task, models = ShardingTask([*sequences[:2], *tables[2:]], 2, 2048, 2**40), step_models(seed, ms_per_mib=0.01)
    assert plan_of(task, models).predicted_cost_ms <= 1.001 * cheapest_of_whole_tables_ms(task, models)


def test_a_few_expensive_sequence_tables_on_many_ranks_are_row_wise():
    tables = [Table(f"t{i}", 10**6, 64, 50.0, pooling="none") for i in range(2)]
    task = ShardingTask(tables, 16, 16384, 2**36, local_world_size=8)
    types = types_of(plan_of(task, load_cost_models("h100")))
    assert set(types.values()) == {"row_wise"}


@pytest.mark.parametrize("types", [None, ["row_wise"], ["data_parallel"], ["row_wise", "data_parallel"]])
def test_tables_on_a_single_rank_stay_whole_unless_constraints_forbid_it(types):
    models, constraints = load_cost_models("h100"), Constraints(sharding_types=types)
    task = ShardingTask(random_tables(np.random.default_rng(3), 6), 1, 512, 2**40, constraints=constraints)
    plan = plan_of(task, models)
    assert set(types_of(plan).values()) <= set(types or ["column_wise"])
    assert len(plan.shards) == len(task.tables)
    assert (plan.predicted.forward_comm_ms, plan.predicted.backward_comm_ms) == ((0.0,), (0.0,))


def test_tables_of_few_rows_become_replicas_on_the_modelled_gpu_and_tables_of_many_rows_do_not():
    models = load_cost_models("h100")
    short = [Table(f"t{i}", 200 + i, 64, 2.0) for i in range(48)]
    task = ShardingTask(short, 16, 65536, 2**36, local_world_size=8)
    assert "data_parallel" in types_of(plan_of(task, models)).values()
    long = replace(task, tables=[replace(table, num_embeddings=10**7) for table in short])
    assert "data_parallel" not in types_of(plan_of(long, models)).values()


def test_a_table_of_which_no_column_shard_fits_a_rank_is_cut_by_rows():
    tables = [Table("giant", 1_000_000, 4, 1.0), *(Table(f"t{i}", 1000, 16, 2.0) for i in range(6))]
    task = ShardingTask(tables, 4, 512, 12_000_000)
    assert types_of(plan_of(task, step_models()))["giant"] == "row_wise"
    assert types_of(plan_of(replace(task, local_world_size=2), step_models()))["giant"] == "table_row_wise"
    with pytest.raises(DoesNotFitError):
        plan_of(task, step_models(), NeuroShard(QUICK_SEARCH))


def test_tables_that_fragment_the_memory_are_cut_until_all_fit():
    tables = [Table(f"t{i}", 100_000, 4, 1.0) for i in range(7)]  # 1.6 MB each; no rank holds three of them
    task = ShardingTask(tables, 3, 512, 4_100_000)
    assert "row_wise" in types_of(plan_of(task, step_models())).values()


def test_tables_whose_row_shards_have_no_room_stay_whole_while_others_are_cut():
    sizes = {"t0": (106_021, 8), "giant": (346_605, 16), "wide": (62_142, 32), "small": (53, 8)}
    tables = [Table(name, rows, dim, 4.0, pooling="none", data_type="fp16") for name, (rows, dim) in sizes.items()]
    memory = (8_257_210, 5_258_200, 7_475_868)  # if all rows were cut, the rank in the middle would be too small
    task = ShardingTask(tables, 3, 17_172, memory, optimizer="rowwise_adagrad", local_world_size=1)
    assert types_of(plan_of(task, step_models())) == dict.fromkeys(sizes, "column_wise") | dict.fromkeys(
        ("t0", "giant"), "row_wise"
    )


def test_sets_of_spread_tables_that_do_not_fit_take_no_place_of_others():
    rows = [15, 5130, 3338, 709, 167, 13342, 743, 457, 118856, 693, 34846]
    lengths = [26.8, 0.34, 0.29, 2.1, 0.3, 0.22, 1.6, 0.54, 0.59, 0.73, 4.4]
    tables = [
        Table(f"t{i}", *each, data_type="fp16") for i, each in enumerate(zip(rows, [4] * 11, lengths, strict=True))
    ]
    task = ShardingTask(tables, 7, 45_682, 1_200_000, optimizer="adam", local_world_size=1)
    problem, models = Problem(task, load_cost_models("h100"), WEIGHTS_AND_OPTIMIZER), load_cost_models("h100")
    types = {table.name: "row_wise" if table.num_embeddings > 1000 else "data_parallel" for table in tables}
    rival = joined(problem, None, spread_tables(types, task, WEIGHTS_AND_OPTIMIZER))
    assert plan_of(task, models).predicted_cost_ms <= placement_cost_ms(problem, rival)


def test_constraints_on_types_are_kept():
    tables = random_tables(np.random.default_rng(5), 10)
    task = ShardingTask(tables, 4, 4096, 2**40, constraints=Constraints(sharding_types=["column_wise"]))
    assert set(types_of(plan_of(task, step_models(ms_per_mib=1e-4))).values()) == {"column_wise"}
    replicas = replace(task, constraints=Constraints(sharding_types=["data_parallel"]))
    assert set(types_of(plan_of(replicas, step_models())).values()) == {"data_parallel"}


def test_the_published_search_does_not_depend_on_the_step_cost_model():
    task = ShardingTask(random_tables(np.random.default_rng(6), 12), 4, 512, 2**40)
    models, published = step_models(3), NeuroShard(QUICK_SEARCH)
    plain = replace(models, step=None)
    assert (plan_of(task, models, published).shards, plan_of(task, models, published).ranks) == (
        plan_of(task, plain, published).shards,
        plan_of(task, plain, published).ranks,
    )


def test_replicas_are_also_tried_in_the_order_of_their_numbers_of_rows():
    """Some candidates replicate the tables with the fewest rows, even if replicas of other tables save more."""
    rng = np.random.default_rng(5)
    tables = [
        Table(f"t{at}", int(rows), 16, float(rng.choice((1, 20)))) for at, rows in enumerate(range(100, 1700, 100))
    ]
    rng.shuffle(tables)
    problem = Problem(ShardingTask(tables, 4, 4096, 2**30), step_models(), WEIGHTS_AND_OPTIMIZER)
    choice = SpreadChoice(problem, usable_types)
    sets = [{n for n, kind in c.types.items() if kind == "data_parallel"} for c in choice.candidates()]
    ordered = [table.name for table in sorted(tables, key=lambda table: table.num_embeddings)]
    for count in (1, 2, 4, 16):
        assert set(ordered[:count]) in sets


def test_sequence_tables_that_fit_no_rank_are_cut_into_as_many_columns_each():
    """Five ranks cannot share eight rows evenly, so the rows of table `few` cannot be cut."""
    tables = [Table(name, rows, 32, 3.0, pooling="none") for name, rows in (("few", 8), ("fewer", 4))]
    bytes_of_few = WEIGHTS_AND_OPTIMIZER.table_bytes(tables[0], 32, ShardingTask(tables, 5, 640, 2**30))
    task = ShardingTask(tables, 5, 640, round(0.7 * bytes_of_few))
    plan = plan_of(task, step_models())
    widths = {shard.embedding_dim for shard in plan.shards if shard.sharding_type == "column_wise"}
    assert types_of(plan)["few"] == "column_wise"
    assert len(widths) == 1
    assert max(widths) < 32


@pytest.mark.parametrize("limits", [{"min_width": 32}, {"max_shards": 1}])
def test_constraints_on_columns_hold_where_only_narrower_blocks_would_fit(limits):
    """Five ranks cannot share eight rows evenly, and a pooled table may only be cut into blocks of rows and columns."""
    sequence = Table("few", 8, 32, 3.0, pooling="none")
    pooled = ShardingTask([Table("wide", 4096, 64, 3.0)], 4, 512, 2**20, local_world_size=2)
    forced = Constraints(**{"max_shards": 2, **limits}, sharding_types=("grid_shard",))
    plan = plan_of(replace(pooled, constraints=forced), step_models())
    widths = {shard.column_offset: shard.embedding_dim for shard in plan.shards}
    assert min(widths.values()) >= forced.min_width
    assert len(widths) <= forced.max_shards
    room = round(0.7 * WEIGHTS_AND_OPTIMIZER.table_bytes(sequence, 32, ShardingTask([sequence], 5, 640, 2**30)))
    with pytest.raises(DoesNotFitError):
        plan_of(ShardingTask([sequence], 5, 640, room, constraints=Constraints(**limits)), step_models())


def test_no_stage_of_a_search_of_several_modules_ends_with_a_dearer_plan():
    """Every module has all-to-alls of its own; a search over columns knows only one for all, and may go astray."""
    rng = np.random.default_rng(42)
    tables = [
        Table(
            f"t{number}",
            int(rng.integers(10, 1000)),
            128,
            rng.uniform(0.3, 30),
            pooling=("sum", "mean", "none")[rng.integers(3)],
            module=f"m{rng.integers(3)}",
        )
        for number in range(12)
    ]
    task = ShardingTask(tables, 8, 8 * 1200, 2**40, "rowwise_adagrad")
    problem = Problem(task, load_cost_models("h100"), WEIGHTS_AND_OPTIMIZER)
    local = LOCAL_SEARCH.model_copy(update={"max_rounds": 10})
    starts = whole_step._starts(problem, SpreadChoice(problem, usable_types), QUICK_SEARCH, ())
    started = [start for start in starts if start.state is not None][:3]
    assert started
    for start in started:
        (improved,) = whole_step._improved(problem, [start], local, np.random.default_rng(0))
        assert max(whole_step._searched(problem, start, QUICK_SEARCH).cost_ms, improved.cost_ms) <= start.cost_ms


def test_tables_that_may_not_be_whole_are_cut_where_no_rank_has_room_for_replicas_of_them():
    """The three tables fill 90 % of both ranks. No rank has room for one of the smaller tables beside half of "a"."""
    tables = [Table("a", 2203, 64, 1.4), Table("b", 28, 256, 4.3), Table("c", 3456, 8, 5.4)]
    types = ("data_parallel", "grid_shard", "table_row_wise")
    task = ShardingTask(tables, 2, 512, 390_684, local_world_size=1, constraints=Constraints(sharding_types=types))
    assert set(types_of(plan_of(task, step_models())).values()) == {"grid_shard"}


def test_tables_of_few_samples_are_placed_by_the_lookup_kernels_that_they_share():
    """Launches of kernels take most of a step: while both ranks have tables of both poolings, no single move helps."""
    sums = ((38, 1.8), (219, 0.2), (4685, 3.1), (985, 1.8), (240, 0.2))
    tables = [Table("s", 18, 64, 0.3, pooling="none"), *(Table(f"t{n}", n, 64, pooling) for n, pooling in sums)]
    task = ShardingTask(tables, 2, 40, (1_800_000, 1_400_000), local_world_size=1, pipelines_input_dist=True)
    models = load_cost_models("h100")
    apart = Placement(tuple(map(whole, tables)), (1, 0, 0, 0, 0, 0))
    limit_ms = 1.001 * placement_cost_ms(Problem(task, models, WEIGHTS_AND_OPTIMIZER), apart)
    assert plan_of(task, models).predicted_cost_ms <= limit_ms


def test_the_best_plan_of_other_sharders_is_improved_even_if_it_is_not_the_cheapest():
    """The plans that a search ends with have many cuts; from whole tables, single changes lead to cheaper ones."""
    task = ShardingTask(random_tables(np.random.default_rng(9), 8), 12, 1200, 2**40, local_world_size=3)
    models = step_models(9, ms_per_mib=1.0)
    problem = Problem(task, models, QUICK.memory)
    greedy = shard(task, models, "size_greedy", QUICK)
    improved = polished(problem, Placement(greedy.shards, greedy.ranks), usable_types)
    found = shard(task, models, params=QUICK)
    assert found.predicted_cost_ms <= 1.01 * placement_cost_ms(problem, improved)
