"""Tables and optimizer of an unsharded model."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torchrec_bridge.needs_torchrec import QUIET

# isort: split
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec_bridge.trained_models import built

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.torchrec_plan.modules import (
    embedding_bag_config,
    embedding_config,
    feature_names,
    read_module_tables,
    read_optimizer,
)

pytestmark = QUIET


def model(*tables: EmbeddingBagConfig) -> torch.nn.ModuleDict:
    collection = EmbeddingBagCollection(tables=list(tables), device=torch.device("meta"))
    return torch.nn.ModuleDict({"ebc": collection})


def test_tables_of_all_collections_are_read():
    read = {entry.table.name: entry for entry in read_module_tables(built("several_collections"))}
    assert len(read) == 13
    assert read["t_weighted_1"].table == Table("t_weighted_1", 60, 32, 1.0, module="tower.weighted", is_weighted=True)
    assert read["t_weighted_1"].module_path == "tower.weighted"
    assert read["t_plain_1"].feature_names == ("plain_1", "plain_1_1")
    assert read["t_plain_1"].table == Table("t_plain_1", 300, 12, 2.0, module="plain", num_features=2)
    assert read["t_mean_0"].table == Table("t_mean_0", 40, 24, 1.0, pooling="mean", module="mean")
    assert read["t_sequence_0"].table == Table("t_sequence_0", 70, 24, 1.0, pooling="none", module="sequence")


@pytest.mark.parametrize(
    ("optimizer", "name"), [(torch.optim.SGD, "sgd"), (RowWiseAdagrad, "rowwise_adagrad"), (torch.optim.Adam, "adam")]
)
def test_the_attached_optimizer_is_read(optimizer, name):
    trained = model(embedding_bag_config("a", Table("a", 1000, 64, 1.0)))
    apply_optimizer_in_backward(optimizer, trained.parameters(), {"lr": 0.1})
    assert read_optimizer(trained) == name


def test_several_optimizers_are_refused():
    trained = model(*(embedding_bag_config(name, Table(name, 1000, 64, 1.0)) for name in "ab"))
    first, second = trained.parameters()
    apply_optimizer_in_backward(torch.optim.SGD, [first], {"lr": 0.1})
    apply_optimizer_in_backward(torch.optim.Adam, [second], {"lr": 0.1})
    with pytest.raises(PlanError, match="have Adam and SGD attached"):
        read_optimizer(trained)


def test_an_optimizer_on_some_tables_only_is_refused():
    trained = model(*(embedding_bag_config(name, Table(name, 1000, 64, 1.0)) for name in "ab"))
    apply_optimizer_in_backward(torch.optim.SGD, [next(trained.parameters())], {"lr": 0.1})
    with pytest.raises(PlanError, match="have SGD and no optimizer attached"):
        read_optimizer(trained)


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
def test_a_table_is_configured_as_it_is_read(pooling):
    table = Table("a", 1000, 64, 3.0, data_type="fp16", pooling=pooling, module="ec", num_features=3)
    if pooling == "none":
        collection = EmbeddingCollection(tables=[embedding_config("b", table)], device=torch.device("meta"))
    else:
        collection = EmbeddingBagCollection(tables=[embedding_bag_config("b", table)], device=torch.device("meta"))
    (read,) = read_module_tables(torch.nn.ModuleDict({"ec": collection}))
    assert read.table == dataclasses.replace(table, name="b")
    assert read.feature_names == feature_names("b", table)
    assert len(set(read.feature_names)) == 3
