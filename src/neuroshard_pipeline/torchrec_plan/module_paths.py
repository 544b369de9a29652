"""The TorchRec collection of every table of a task. Tables that no model can have in its collections are refused.

An `EmbeddingBagCollection` holds pooled tables whose ids all have weights or all have none; an `EmbeddingCollection`
holds sequence tables of one width. Both keep their tables in a `torch.nn.ModuleDict`, which refuses some names.
"""

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.tables.kinds import EmbeddingModule
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

#: A name after `def` or `self.`, in quotes, or at the head of a line of a class.
_DEFINED = re.compile(r"(?:\bdef |\bself\.|[\"']|^    (?=\w+ *[:=]))(\w+)", re.MULTILINE)


def module_paths(task: ShardingTask, module_path: str | Mapping[str, str] | None = None) -> dict[str, str]:
    """The fully qualified name of every table's collection. `plan_json.plan_to_json` documents `module_path`.

    Raises:
        PlanError: TorchRec refuses the name of a table, or two tables in one collection; the message names the remedy.
    """
    for name in (table.name if table.tier is None else table.tier.parent for table in task.tables):
        if "." in name or _is_attribute(name):
            why = "contains a dot" if "." in name else "is an attribute of torch.nn.ModuleDict"
            raise PlanError(f"{task.task_id}: TorchRec refuses the table name {name!r}, which {why}; rename the table")
    if isinstance(module_path, Mapping):
        paths, remedy = dict(module_path), "module_path"
    else:
        paths, remedy = _paths(task, module_path), "the column 'module' of the table file"
    first: dict[str, Table] = {}
    for table in task.tables:
        other = first.setdefault(paths.get(table.name, table.name), table)
        if _kind(table) != _kind(other):
            raise PlanError(
                f"{task.task_id}: TorchRec refuses a module with {other.name!r}, {_kind(other)}, and {table.name!r}, "
                f"{_kind(table)}; give them different modules in {remedy}"
            )
    return paths


def _is_attribute(name: str) -> bool:
    """Whether `torch.nn.ModuleDict` has an attribute of this name. Only names that its source defines import torch."""
    if name not in _names_in_module_dict() and not name.startswith("__"):
        return False
    from torch import nn  # this import takes a second

    return hasattr(nn.ModuleDict(), name)


@cache
def _names_in_module_dict() -> frozenset[str]:
    """Names that are defined or quoted in the files of torch that define `ModuleDict` and its base class."""
    found = importlib.util.find_spec("torch")
    folders = (found and found.submodule_search_locations) or ()
    files = [Path(folder, "nn", "modules", name) for folder in folders for name in ("module.py", "container.py")]
    return frozenset(word for file in files for word in _DEFINED.findall(file.read_text(encoding="utf-8")))


def _paths(task: ShardingTask, module_path: str | None) -> dict[str, str]:
    paths: dict[EmbeddingModule, str] = {}
    for module in sorted({table.embedding_module for table in task.tables}):
        path = module.module or module_path or module.default_path
        paths[module] = f"{path}_{module.collection}" if path in paths.values() else path
    return {table.name: paths[table.embedding_module] for table in task.tables}


def _kind(table: Table) -> str:
    if table.pooling == "none":
        return f"a sequence table of {table.embedding_dim} columns"
    return f"a pooled table {'with' if table.is_weighted else 'without'} weighted ids"
