"""TorchRec can build the modules of a stored plan. Tables that it cannot build modules with are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec import EmbeddingBagCollection, EmbeddingCollection

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.plan_json import plan_from_json, plan_to_json
from neuroshard_pipeline.torchrec_plan.module_paths import module_paths
from neuroshard_pipeline.torchrec_plan.modules import embedding_bag_config, embedding_config

pytestmark = QUIET

SUM, MEAN = Table("sum", 10, 16, 1.0), Table("mean", 10, 8, 1.0, pooling="mean")
WEIGHTED, SEQUENCE = Table("weighted", 10, 8, 1.0, is_weighted=True), Table("sequence", 10, 32, 1.0, pooling="none")
NARROW = Table("narrow", 10, 16, 1.0, pooling="none")


def task_of(*tables: Table) -> ShardingTask:
    return ShardingTask(tables, 1, 8, 2**20)


def in_module(module: str, *tables: Table) -> list[Table]:
    return [replace(table, module=module) for table in tables]


def collection(tables: list[Table]) -> torch.nn.Module:
    """TorchRec's module of these tables, as a user would build it; TorchRec refuses tables that do not fit together."""
    meta = torch.device("meta")
    if any(table.pooling == "none" for table in tables):
        return EmbeddingCollection([embedding_config(table.name, table) for table in tables], meta)
    (is_weighted,) = {table.is_weighted for table in tables}
    return EmbeddingBagCollection([embedding_bag_config(table.name, table) for table in tables], is_weighted, meta)


def model_of(document: dict, tables: list[Table]) -> torch.nn.Module:
    """A model with exactly the modules of a stored plan."""
    model, of_name = torch.nn.Module(), {table.name: table for table in tables}
    for path, forms in document["plan"].items():
        *parents, name = path.split(".")
        parent = model
        for part in parents:
            if not hasattr(parent, part):
                setattr(parent, part, torch.nn.Module())
            parent = getattr(parent, part)
        setattr(parent, name, collection([of_name[table] for table in forms]))
    return model


def test_tables_that_name_the_default_path_share_the_module_of_those_that_name_none():
    """Otherwise such a module would be priced and exported as two modules with collectives of their own."""
    named = in_module("sparse_arch.embedding_bag_collection", MEAN)
    assert named[0].embedding_module == SUM.embedding_module != WEIGHTED.embedding_module
    assert set(module_paths(task_of(SUM, *named)).values()) == {named[0].module}
    assert in_module("sparse_arch.embedding_bag_collection", SEQUENCE)[0].embedding_module != SEQUENCE.embedding_module


@pytest.mark.parametrize("module_path", [None, "model.tables"])
@pytest.mark.parametrize(
    "tables",
    [
        [SUM, MEAN, WEIGHTED, SEQUENCE],
        [SEQUENCE],
        in_module("tower", SUM, MEAN, WEIGHTED, SEQUENCE),
        [SUM, *in_module("tower", SEQUENCE, WEIGHTED), *in_module("history", NARROW)],
        [SUM, *in_module("model.tables", SEQUENCE)],
    ],
)
def test_torchrec_builds_the_modules_of_a_stored_plan_which_are_those_that_were_priced(tables, module_path):
    task = task_of(*tables)
    plan = Plan(task, tuple(map(whole, tables)), (0,) * len(tables), "by hand", compute_device="cpu")
    document = plan_to_json(plan, module_path=module_path)
    assert len(document["plan"]) == len({table.embedding_module for table in tables})
    assert document["plan"].keys() == plan.to_torchrec(model_of(document, tables)).plan.keys()
    assert plan_from_json(document) == plan


def test_paths_without_other_kinds_are_those_of_the_user_and_pooled_tables_have_the_path_of_torchrecs_dlrm():
    assert module_paths(task_of(SUM, SEQUENCE, *in_module("tower", NARROW))) == {
        "sum": "sparse_arch.embedding_bag_collection",
        "sequence": "sparse_arch.embedding_collection",
        "narrow": "tower",
    }
    assert module_paths(task_of(SEQUENCE), "history") == {"sequence": "history"}


@pytest.mark.parametrize(
    ("tables", "module_path", "remedy"),
    [
        ([SUM, SEQUENCE, NARROW], None, "column 'module'"),
        (in_module("tower", SEQUENCE, NARROW), None, "column 'module'"),
        ([SUM, SEQUENCE], {"sum": "m", "sequence": "m"}, "module_path"),
        ([SUM, WEIGHTED], {"sum": "m", "weighted": "m"}, "module_path"),
        ([SEQUENCE, NARROW], {"sequence": "m", "narrow": "m"}, "module_path"),
    ],
)
def test_tables_that_torchrec_cannot_have_in_one_module_are_refused(tables, module_path, remedy):
    *_, first, second = tables
    if first.pooling == second.pooling == "none":
        with pytest.raises(ValueError, match="same embedding dimension"):
            collection([first, second])
    with pytest.raises(PlanError, match=f"{first.name!r}, .* and {second.name!r}, .* in .*{remedy}"):
        module_paths(task_of(*tables), module_path)


@pytest.mark.parametrize(
    "name",
    ["items", "keys", "type", "training", "forward", "_modules", "user.id", "cat_00", "t000", "a/b", "item s", "0"],
)
def test_exactly_the_table_names_that_torchrec_refuses_are_refused(name):
    table = Table(name, 10, 16, 1.0)
    try:
        collection([table])
    except KeyError:
        with pytest.raises(PlanError, match=f"TorchRec refuses the table name {name!r}"):
            module_paths(task_of(SUM, table))
    else:
        assert set(module_paths(task_of(SUM, table))) == {"sum", name}


def test_no_attribute_of_a_module_dict_is_a_table_name():
    for name in dir(torch.nn.ModuleDict()):
        with pytest.raises(PlanError, match="attribute"):
            module_paths(task_of(Table(name, 10, 16, 1.0)))


def test_torchrec_refuses_some_of_these_names():
    for name in ("items", "user.id"):
        with pytest.raises(KeyError):
            collection([Table(name, 10, 16, 1.0)])
