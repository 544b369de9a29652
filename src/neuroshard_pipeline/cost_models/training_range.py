"""The range of a cost model's training samples, and the values of a task that lie outside it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neuroshard_pipeline.tables.samples import CommSample, ComputeSample
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

#: Key of the training range in a model's provenance.
TRAINING_RANGE = "training_range"

#: Quantities of a table that have a training range, and how to read each from a table. An `embedding_dim` below the
#: range is not reported, because a search may cut any wider table into equally narrow shards, too.
_TABLE_RANGES: dict[str, Callable[[Table], float]] = {
    "num_embeddings": lambda table: table.num_embeddings,
    "embedding_dim": lambda table: table.embedding_dim,
    "pooling_factor": lambda table: table.pooling_factor,
}

#: Words of a message between a task's value and the training range. They do not say whether costs were measured.
_TRAINED_ON = "the compute cost model was trained on"


def compute_range(samples: Sequence[ComputeSample]) -> dict[str, Any]:
    """The ranges `[smallest, largest]`, optimizers and data types of the training samples: JSON values by name."""
    shards = [shard for sample in samples for shard in sample.shards]
    ranges = {name: _range([value(shard.table) for shard in shards]) for name, value in _TABLE_RANGES.items()}
    return {
        "batch_size": _range([sample.batch_size for sample in samples]),
        **(ranges | {"embedding_dim": _range([shard.embedding_dim for shard in shards])}),
        "optimizer": sorted({sample.optimizer for sample in samples}),
        "data_type": sorted({shard.table.data_type for shard in shards}),
    }


def comm_range(samples: Sequence[CommSample]) -> dict[str, Any]:
    """The ranges `[smallest, largest]` of the training samples: JSON values by name."""
    return {
        "batch_size": _range([sample.batch_size for sample in samples]),
        "world_size": _range([sample.world_size for sample in samples]),
    }


def compute_caveats(task: ShardingTask, trained: Mapping[str, Any]) -> list[str]:
    """Messages about a task's values outside the ranges `trained` (`compute_range`); values without a range pass."""
    found = []
    for name, value in _TABLE_RANGES.items():
        outside = [table for table in task.tables if _outside(value(table), trained.get(name))]
        if name == "embedding_dim":
            outside = [table for table in outside if table.embedding_dim > trained[name][1]]
        if outside:
            first, others = outside[0], len(outside) - 1
            tables = f"table {first.name!r}" + (f" and {others} more" if others else "")
            found.append(f"{name} {value(first):,g} of {tables}: {_TRAINED_ON} {_words(trained[name])}")
    if _outside(task.batch_size, trained.get("batch_size")):
        found.append(f"batch_size {task.batch_size}: {_TRAINED_ON} {_words(trained['batch_size'])}")
    for name, kinds in (("optimizer", {task.optimizer}), ("data_type", {table.data_type for table in task.tables})):
        known = trained.get(name)
        if known is not None and kinds - set(known):
            unknown = ", ".join(sorted(kinds - set(known)))
            found.append(f"{name} {unknown}: {_TRAINED_ON} {', '.join(known)}")
    return found


def comm_caveats(task: ShardingTask, trained: Mapping[str, Any]) -> list[str]:
    """Messages about a task's values outside the ranges `trained` (`comm_range`); values without a range pass.

    A task for one rank has none, because a single rank does not communicate.
    """
    if task.world_size == 1:
        return []
    values = {"batch_size": task.batch_size, "world_size": task.world_size}
    return [
        f"{name} {value}: the communication cost model was trained on {_words(trained[name])}"
        for name, value in values.items()
        if _outside(value, trained.get(name))
    ]


def _range(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]


def _outside(value: float, known: Sequence[float] | None) -> bool:
    return known is not None and not known[0] <= value <= known[1]


def _words(known: Sequence[float]) -> str:
    low, high = (f"{value:,g}" if value < 1e6 else f"{value:,.0f}" for value in known)
    return low if low == high else f"{low} to {high}"
