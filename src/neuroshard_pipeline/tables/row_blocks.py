"""The ranks that hold a table together, and the blocks of rows that TorchRec gives to each of them."""

from neuroshard_pipeline.tables.table import Shard, ShardingType, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask


def ranks_together(sharding_type: ShardingType, task: ShardingTask) -> list[range]:
    """The groups of ranks that can hold a table or column block of this type: single ranks, those of a host, or all."""
    sizes = {"column_wise": 1, "row_wise": task.world_size, "data_parallel": task.world_size}
    size = sizes.get(sharding_type, task.ranks_per_host)
    return [range(first, first + size) for first in range(0, task.world_size, size)]


def shards_together(block: Shard, sharding_type: ShardingType, num_ranks: int) -> list[Shard]:
    """The shards of a whole table or column block on ranks that hold it together; the last ranks may have no rows."""
    if sharding_type == "column_wise":
        return [block]
    if sharding_type == "data_parallel":
        return [whole(block.table, sharding_type)] * num_ranks
    return row_shards(block.table, sharding_type, num_ranks, block.column_offset, block.embedding_dim)


def row_blocks(num_embeddings: int, num_ranks: int) -> list[tuple[int, int]]:
    """First row and number of rows of every rank, in the order of the ranks.

    TorchRec cuts rows into blocks of `ceil(num_embeddings / num_ranks)`. The last ranks get fewer rows or none: 10 rows
    on 4 ranks are blocks of 3, 3, 3 and 1 rows. TorchRec sends ids to ranks by this rule, whatever sizes the shards of
    a plan have (`rw_sharding.RwSparseFeaturesDist` of TorchRec 1.8).
    """
    size = -(-num_embeddings // num_ranks)
    starts = (min(rank * size, num_embeddings) for rank in range(num_ranks))
    return [(start, min(size, num_embeddings - start)) for start in starts]


def last_rank_has_rows(num_embeddings: int, num_ranks: int) -> bool:
    """Whether the last of the blocks of `row_blocks`, and therefore every one of them, has rows."""
    return (num_ranks - 1) * -(-num_embeddings // num_ranks) < num_embeddings


def row_shards(
    table: Table, sharding_type: ShardingType, num_ranks: int, column_offset: int = 0, embedding_dim: int | None = None
) -> list[Shard]:
    """The shards of a column block whose rows `num_ranks` ranks hold, in their order; one for every rank with rows.

    The ranks are all ranks of the task (`row_wise`), or all ranks of one host (`table_row_wise`, `grid_shard`,
    `host_row_wise`). The block has `embedding_dim` columns from `column_offset` on, by default all of the table.
    """
    width = table.embedding_dim if embedding_dim is None else embedding_dim
    blocks = row_blocks(table.num_embeddings, num_ranks)
    return [Shard(table, column_offset, width, start, rows, sharding_type) for start, rows in blocks if rows]
