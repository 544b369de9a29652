"""The training check's models as ordinary modules on the CPU, and TorchRec's own model with the same weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchrec import EmbeddingBagCollection
from torchrec.models.dlrm import DLRM_DCN

from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.torchrec_bridge.train_check.batches import DENSE_FEATURES
from neuroshard_pipeline.torchrec_bridge.train_check.model import RankingModel, initial_columns
from neuroshard_pipeline.torchrec_bridge.train_check.params import ModelName, TrainingParams


def unsharded_model(name: ModelName, tables: Sequence[Table], params: TrainingParams) -> RankingModel:
    """The model with its tables on the CPU and the same initial weights as the sharded models."""
    model = RankingModel(name, tables, params)
    configs = model.embedding_bag_collection.embedding_bag_configs()
    model.embedding_bag_collection = EmbeddingBagCollection(tables=configs, device=torch.device("cpu"))
    with torch.no_grad():
        for table in tables:
            weights = initial_columns(table, 0, table.embedding_dim, params.seed)
            model.embedding_bag_collection.embedding_bags[table.name].weight.copy_(torch.from_numpy(weights))
    return model


def torchrecs_dlrm(model: RankingModel, params: TrainingParams) -> DLRM_DCN:
    """TorchRec's model with the weights of a DLRM, whose tables must have equal widths."""
    theirs = DLRM_DCN(
        model.embedding_bag_collection,
        DENSE_FEATURES,
        list(params.dense_layers),
        [*params.over_layers, 1],
        params.cross_layers,
        params.cross_rank,
    )
    parts = theirs.dense_arch, theirs.inter_arch.crossnet, theirs.over_arch
    for ours, other in zip(model.dense.layers, parts, strict=True):
        other.load_state_dict(ours.state_dict())
    return theirs
