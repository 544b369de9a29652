"""Tables that are read from the output of TorchRec's own planner."""

from __future__ import annotations

import logging

import pytest

from neuroshard_pipeline.errors import TableFileError
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.table_file import read_tables


@pytest.fixture(scope="module")
def printed():
    """The planner's output for two pooled tables, one with two features, and a sequence table; and these tables."""
    torch = pytest.importorskip("torch")
    torchrec = pytest.importorskip("torchrec")
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation

    bags = [
        torchrec.EmbeddingBagConfig(name="one", embedding_dim=128, num_embeddings=1000, feature_names=["f"]),
        torchrec.EmbeddingBagConfig(name="two", embedding_dim=128, num_embeddings=10**6, feature_names=["g", "h"]),
    ]
    rows = [torchrec.EmbeddingConfig(name="seq", embedding_dim=64, num_embeddings=5000, feature_names=["i"])]
    model = torch.nn.ModuleDict(
        {
            "ebc": torchrec.EmbeddingBagCollection(device="meta", tables=bags),
            "ec": torchrec.EmbeddingCollection(device="meta", tables=rows),
        }
    )
    constraints = {
        "one": ParameterConstraints(pooling_factors=[3.0]),
        "two": ParameterConstraints(pooling_factors=[4.0, 8.0], sharding_types=["column_wise"], min_partition=64),
    }
    topology = Topology(world_size=2, local_world_size=2, compute_device="cuda")
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=512,
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(0.1),
        debug=True,
    )
    lines, logger = [], logging.getLogger("torchrec.distributed.planner.stats")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        planner.plan(model, [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()])
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    expected = {
        Table("ebc.one", 1000, 128, 3.0, module="ebc"),
        Table("ebc.two", 10**6, 128, 12.0, module="ebc", num_features=2),
        Table("ec.seq", 5000, 64, 1.0, module="ec", pooling="none"),
    }
    return lines, expected


@pytest.mark.parametrize("prefix", ["", "INFO:torchrec.distributed.planner.stats:"])
def test_tables_of_the_planners_output(printed, tmp_path, prefix):
    lines, expected = printed
    file = tmp_path / "planner.log"
    file.write_text("".join(f"{prefix}{line}\n" for line in lines))
    assert set(read_tables(file)) == expected


def test_other_text_is_refused(tmp_path):
    file = tmp_path / "other.txt"
    file.write_text("# nothing here  #\n")
    with pytest.raises(TableFileError, match="has no lines of TorchRec's planner"):
        read_tables(file)
    with pytest.raises(TableFileError, match=r"missing\.txt"):
        read_tables(tmp_path / "missing.txt")
