"""The index finds the tier and the row of every id; wrong cuts, popular ids, plans and optimizers are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
import torch
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec import EmbeddingCollection, EmbeddingConfig
from torchrec.distributed.types import ParameterSharding
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.tiers import Cuts
from neuroshard_pipeline.torchrec_bridge.tiered import rank_groups, tiered_embeddings
from neuroshard_pipeline.torchrec_bridge.tiered.build import check_cold_plan, optimizer_of
from neuroshard_pipeline.torchrec_bridge.tiered.index import TierIndex, tiered_tables
from neuroshard_pipeline.torchrec_plan.comm_precision import format_on, torchrec_sharders

pytestmark = [*QUIET]


@st.composite
def tables_with_cuts(draw):
    """Rows, cuts and popular ids of one to four tables."""
    rows, cuts, popular = {}, {}, {}
    for at in range(draw(st.integers(1, 4))):
        name = f"t{at}"
        rows[name] = draw(st.integers(1, 12))
        hot = draw(st.integers(0, rows[name]))
        cuts[name] = Cuts(hot, draw(st.integers(0, rows[name] - hot)))
        popular[name] = np.array(draw(st.permutations(range(rows[name]))))
    return rows, cuts, popular


@given(tables_with_cuts(), st.integers(0, 2**32 - 1))
def test_every_id_has_one_row_in_the_tier_of_its_popularity(drawn, seed):
    rows, cuts, popular = drawn
    index = TierIndex(tiered_tables(rows, cuts, popular), torch.device("cpu"))
    rng = np.random.default_rng(seed)
    table = np.sort(rng.integers(0, len(rows), 30))
    ids = rng.integers(0, np.array(list(rows.values()))[table])
    split = index.split(index.keys_of(torch.from_numpy(ids), torch.from_numpy(table)), torch.from_numpy(table))
    found = {}
    for kind, at, places in zip(("hot", "host", "cold"), split[::2], split[1::2], strict=True):
        found |= {int(a): (kind, int(place)) for a, place in zip(at, places, strict=True)}
    assert [found[at] for at in range(30)] == [
        _place(rows, cuts, popular, int(t), int(i)) for t, i in zip(table, ids, strict=True)
    ]


def _place(rows, cuts, popular, table: int, row: int) -> tuple[str, int]:
    """The tier of a row and its place there, counted one by one."""
    names = list(rows)
    name = names[table]
    order, own = popular[name].tolist(), cuts[name]
    place = order.index(row)
    if place < own.hot_rows:
        return "hot", sum(cuts[before].hot_rows for before in names[:table]) + place
    if place < own.hot_rows + own.host_rows:
        return "host", sum(cuts[before].host_rows for before in names[:table]) + place - own.hot_rows
    return "cold", sum(other < row for other in order[own.hot_rows + own.host_rows :])


@given(tables_with_cuts())
def test_the_ids_of_all_tiers_are_those_of_the_table(drawn):
    rows, cuts, popular = drawn
    index = TierIndex(tiered_tables(rows, cuts, popular), torch.device("cpu"))
    for at, (name, own) in enumerate(cuts.items()):
        (hot, hot_rows), (host, host_rows) = index.hot_ids(at), index.host_ids(at)
        assert hot.tolist() == popular[name][: own.hot_rows].tolist()
        assert host.tolist() == popular[name][own.hot_rows : own.hot_rows + own.host_rows].tolist()
        assert (hot_rows.stop - hot_rows.start, host_rows.stop - host_rows.start) == (own.hot_rows, own.host_rows)
        num_cold = rows[name] - own.hot_rows - own.host_rows
        cold = index.cold_ids(at, 0, num_cold)
        assert sorted([*hot.tolist(), *host.tolist(), *cold.tolist()]) == list(range(rows[name]))
        assert cold.tolist() == sorted(cold.tolist())
        assert torch.equal(index.cold_ids(at, num_cold // 2, num_cold), cold[num_cold // 2 :])


@pytest.mark.parametrize("wrong", [-1, 7])
def test_ids_outside_the_table_are_refused(wrong):
    index = TierIndex(tiered_tables({"a": 7, "b": 20}, {}, {}), torch.device("cpu"))
    with pytest.raises(RuntimeError, match="an id lies outside the rows of its table"):
        index.keys_of(torch.tensor([3, wrong]), torch.tensor([0, 0]))


@pytest.mark.parametrize(
    ("cuts", "popular", "message"),
    [
        ({"b": Cuts(1)}, {"b": [0]}, "cuts name the table 'b', which the module does not have; it has a"),
        ({"a": Cuts(6, 5)}, {"a": range(10)}, "table 'a' has 10 rows, but its cuts take 11 of them"),
        ({"a": Cuts(2, 3)}, {}, "popular_rows has 0 ids of table 'a', but its cuts take 2 hot and 3 host rows"),
        ({"a": Cuts(2)}, {"a": [1]}, "popular_rows has 1 ids of table 'a'"),
        ({"a": Cuts(2)}, {"a": [1, 1]}, "must be different ids from 0 to 9; found 1 different ids from 1 to 1"),
        ({"a": Cuts(2)}, {"a": [1, 10]}, "must be different ids from 0 to 9; found 2 different ids from 1 to 10"),
    ],
)
def test_impossible_cuts_and_popular_ids_are_refused(cuts, popular, message):
    with pytest.raises(PlanError, match=message):
        tiered_tables({"a": 10}, cuts, {name: np.array(ids) for name, ids in popular.items()})


def sequences() -> EmbeddingCollection:
    configs = [EmbeddingConfig(name=name, embedding_dim=4, num_embeddings=10, feature_names=[name]) for name in "ab"]
    return EmbeddingCollection(tables=configs)


def test_every_table_needs_the_same_optimizer():
    module = sequences()
    with pytest.raises(PlanError, match="needs the same optimizer for all its tables"):
        optimizer_of(module)
    for name, rate in (("a", 0.1), ("b", 0.2)):
        apply_optimizer_in_backward(torch.optim.SGD, module.embeddings[name].parameters(), {"lr": rate})
    with pytest.raises(PlanError, match="needs the same optimizer for all its tables"):
        optimizer_of(module)
    module = sequences()
    apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.3})
    assert optimizer_of(module) == (torch.optim.SGD, {"lr": 0.3})


def sharding(rows: int, sharding_type: str = "table_wise") -> ParameterSharding:
    spec = EnumerableShardingSpec([ShardMetadata(shard_offsets=[0, 0], shard_sizes=[rows, 4], placement="rank:0/cpu")])
    return ParameterSharding(sharding_type=sharding_type, compute_kernel="fused", ranks=[0], sharding_spec=spec)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"a": sharding(10)}, "the plan of cold rows lacks the table 'b'; .* exactly the tables a, b"),
        ({"a": sharding(10), "b": sharding(10), "c": sharding(1)}, "the module has no cold rows for the table 'c'"),
        ({"a": sharding(10), "b": sharding(9)}, "table 'b' has 10 rows, but 9 in the plan of cold rows"),
        ({"a": sharding(10), "b": sharding(10, "data_parallel")}, "'b' is data_parallel .* make all its rows hot"),
    ],
)
def test_plans_that_do_not_fit_the_cold_rows_are_refused(plan, message):
    with pytest.raises(PlanError, match=message):
        check_cold_plan(sequences().embedding_configs(), plan)


def test_unknown_number_formats_are_refused_and_bf16_is_fp16_on_cpus():
    with pytest.raises(PlanError, match="comm_precision 'fp8' is unknown; use one of fp32, fp16, bf16"):
        torchrec_sharders("fp8")
    assert [format_on(device, "bf16") for device in ("cpu", "cuda")] == ["fp16", "bf16"]


def test_pooled_tables_have_no_tiers():
    with pytest.raises(PlanError, match="only the tables of an EmbeddingCollection have tiers, not those of Linear"):
        tiered_embeddings(torch.nn.Linear(1, 1), {}, {}, {}, None)


def test_groups_need_a_process_group():
    with pytest.raises(PlanError, match=r"no process group: call torch\.distributed\.init_process_group first"):
        rank_groups(1)
