"""Memory of tables in host memory, compared with what FBGEMM allocates and with TorchRec's storage estimates."""

from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrec")

from fbgemm_gpu.split_embedding_configs import EmbOptimType  # noqa: E402
from fbgemm_gpu.split_table_batched_embeddings_ops_common import ComputeDevice, EmbeddingLocation  # noqa: E402
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen  # noqa: E402
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.planner.shard_estimators import calculate_shard_storages  # noqa: E402
from torchrec.distributed.planner.utils import build_sharder_data  # noqa: E402

from neuroshard_pipeline.errors import PlanError  # noqa: E402
from neuroshard_pipeline.search.plan import Plan  # noqa: E402
from neuroshard_pipeline.tables.table import Shard, Table, whole  # noqa: E402
from neuroshard_pipeline.tables.task import ShardingTask  # noqa: E402
from search.settings import WEIGHTS_AND_OPTIMIZER as MEMORY  # noqa: E402

LOCATIONS = {
    "fused": EmbeddingLocation.DEVICE,
    "fused_uvm": EmbeddingLocation.MANAGED,
    "fused_uvm_caching": EmbeddingLocation.MANAGED_CACHING,
}
OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
}
#: Room for buffers that the memory model leaves out; their size does not depend on the rows of the tables.
SMALL_BYTES = 2_000


def a_task(tables, optimizer="sgd", host_memory_bytes=2**40):
    return ShardingTask(tables, 2, 128, 2**40, optimizer, host_memory_bytes=host_memory_bytes)


def allocated_bytes(tables, optimizer):
    """Bytes of GPU memory and of host memory that FBGEMM's kernel for these tables asks for; none are allocated."""
    specs = [
        (table.num_embeddings, table.embedding_dim, LOCATIONS[table.compute_kernel], ComputeDevice.CUDA)
        for table in tables
    ]
    cached = [table for table in tables if table.compute_kernel == "fused_uvm_caching"]
    rows = sum(table.num_embeddings for table in cached)  # TorchRec weights the load factors by rows
    load_factor = sum(table.cache_load_factor * table.num_embeddings for table in cached) / rows if cached else 0.2
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.get_device_properties", return_value=mock.Mock(total_memory=2**50)),
        mock.patch("torch.cuda.memory_reserved", return_value=0),
    ):
        kernel = SplitTableBatchedEmbeddingBagsCodegen(
            specs, optimizer=OPTIMIZERS[optimizer], device=torch.device("meta"), cache_load_factor=load_factor
        )
    found = {"hbm": 0, "host": 0}
    for name, tensor in [*kernel.named_buffers(), *kernel.named_parameters()]:
        found["host" if name.endswith("_uvm") else "hbm"] += tensor.numel() * tensor.element_size()
    return found["hbm"], found["host"]


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize(
    "tables",
    [
        [Table("a", 100_000, 64, 1.0, compute_kernel="fused_uvm")],
        [Table("a", 100_000, 64, 1.0, compute_kernel="fused_uvm_caching", cache_load_factor=0.3)],
        [
            Table("a", 100_000, 64, 1.0, compute_kernel="fused_uvm_caching"),
            Table("b", 40_000, 16, 1.0, compute_kernel="fused_uvm_caching", cache_load_factor=0.5),
            Table("c", 70_000, 32, 1.0, compute_kernel="fused_uvm"),
            Table("d", 5_000, 128, 1.0),
        ],
    ],
    ids=["uvm", "cached", "mixed"],
)
def test_bytes_are_those_that_fbgemm_allocates(tables, optimizer):
    task = a_task(tables, optimizer)
    shards = [whole(table) for table in tables]
    hbm, host = allocated_bytes(tables, optimizer)
    assert 0 <= hbm - MEMORY.rank_bytes(shards, task) <= SMALL_BYTES
    assert 0 <= host - sum(MEMORY.host_bytes(shard, task) for shard in shards) <= SMALL_BYTES


def test_slots_are_as_wide_as_the_widest_cached_table_of_the_rank():
    wide = Table("wide", 64_000, 128, 1.0, compute_kernel="fused_uvm_caching")
    narrow = Table("narrow", 64_000, 16, 1.0, compute_kernel="fused_uvm_caching")
    task, (first, second) = a_task([wide, narrow]), (whole(wide), whole(narrow))
    apart = MEMORY.rank_bytes([first], task) + MEMORY.rank_bytes([second], task)
    assert MEMORY.rank_bytes([first, second], task) - apart == 0.2 * 64_000 * 112 * 4
    assert (
        MEMORY.rank_bytes([first, whole(Table("other", 64_000, 16, 1.0))], task)
        == MEMORY.rank_bytes([first], task) + 64_000 * 16 * 4
    )


@pytest.mark.parametrize("sharding_type", ["column_wise", "row_wise"])
@pytest.mark.parametrize(("kernel", "load_factor"), [("fused_uvm", 0.2), ("fused_uvm_caching", 0.25)])
def test_storage_equals_that_of_torchrecs_planner(kernel, load_factor, sharding_type):
    """The rows are multiples of 32 / load factor, because TorchRec's planner does not round slots up to sets of 32."""
    in_gpu = Table("a", 96_000, 64, 1.0)
    in_host = Table("a", 96_000, 64, 1.0, compute_kernel=kernel, cache_load_factor=load_factor)
    rows = 48_000 if sharding_type == "row_wise" else 96_000

    def estimated(compute_kernel):
        return calculate_shard_storages(
            build_sharder_data(EmbeddingBagCollectionSharder()),
            sharding_type,
            torch.empty(96_000, 64, device="meta"),
            "cuda",
            compute_kernel,
            [[rows, 64]],
            [64],
            world_size=2,
            local_world_size=2,
            input_lengths=[1.0],
            num_poolings=[1.0],
            caching_ratio=load_factor,
            is_pooled=True,
            input_data_type_size=8,
            output_data_type_size=4,
        )[0]

    def ours(table):
        return MEMORY.shard_bytes(Shard(table, 0, 64, 0, rows, sharding_type), a_task([table]))

    assert estimated(kernel).ddr == MEMORY.host_bytes(Shard(in_host, 0, 64, 0, rows, sharding_type), a_task([in_host]))
    assert estimated("fused").hbm - estimated(kernel).hbm == ours(in_gpu) - ours(in_host)


def test_a_plan_needs_enough_host_memory():
    table = Table("a", 1000, 16, 1.0, compute_kernel="fused_uvm")
    with pytest.raises(PlanError, match="rank 1 needs 64000 bytes of host memory for its shards but has 63999"):
        Plan(a_task([table], host_memory_bytes=63_999), (whole(table),), (1,), "by hand")
    assert Plan(a_task([table], host_memory_bytes=64_000), (whole(table),), (1,), "by hand").memory_bytes == (0, 0)


def test_a_replica_cannot_be_in_host_memory():
    table = Table("a", 1000, 16, 1.0, compute_kernel="fused_uvm")
    shards = (whole(table, "data_parallel"),) * 2
    with pytest.raises(PlanError, match="replicas are in GPU memory"):
        Plan(a_task([table]), shards, (0, 1), "by hand")
    assert "data_parallel" not in a_task([table]).possible_types(table)
