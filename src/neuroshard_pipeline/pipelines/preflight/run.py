"""What the checks know of a run before it starts."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import yaml
from kedro.io import CatalogProtocol
from kedro.pipeline import Node, Pipeline

T = TypeVar("T")


@dataclass(frozen=True)
class PlannedRun:
    """A run before its first node.

    Attributes:
        pipeline: the nodes that will run, after `--from-nodes`, `--tags` and the like.
        catalog: datasets and typed parameters.
        params: Kedro's record of the run.
    """

    pipeline: Pipeline
    catalog: CatalogProtocol
    params: dict[str, Any]

    def given(self, node: Node, kind: type[T]) -> tuple[str, T]:
        """Name and value of the parameter of type `kind` among the inputs of a node.

        Raises:
            LookupError: the node has no such parameter.
        """
        for name in node.inputs:
            if name.startswith("params:") and isinstance(value := self.catalog[name].load(), kind):
                return name.removeprefix("params:"), value
        raise LookupError(f"{node.name} has no parameter of type {kind.__name__}")

    def nodes_of(self, namespace: str | None, functions: set[Any]) -> list[Node]:
        """The nodes of a namespace that call one of `functions`."""
        return [node for node in self.pipeline.nodes if node.namespace == namespace and node.func in functions]

    def lacks(self, dataset: str) -> bool:
        """Whether the run reads a dataset that has no version, and no version of it is pinned."""
        stored: Any = self.catalog.get(dataset)
        return dataset in self.pipeline.inputs() and not (stored.exists() or stored._version.load)

    def world_sizes(self, dataset: str) -> set[int]:
        """World sizes of the samples or tasks in a dataset, which an earlier run or a node of this run makes."""
        makers = [node for node in self.pipeline.nodes if dataset in node.outputs]
        if not makers:
            return self._stored_world_sizes(dataset)
        found: set[int] = set()
        for name in makers[0].inputs:
            value = self.catalog[name].load() if name.startswith("params:") else None
            found |= set(getattr(value, "world_sizes", None) or ()) | ({getattr(value, "world_size", 0)} - {0})
        return found

    def setting(self, name: str, value: object) -> str:
        """`parameter <name>=<value> (<where it was set>)`."""
        return f"parameter {name}={value!r} ({self._origin(name)})"

    def command(self, pipeline: str) -> str:
        """The command that runs another pipeline in the environment and the data folder of this run."""
        env = f" --env {self.params['env']}" if self.params.get("env") else ""
        folder = (self.params.get("runtime_params") or {}).get("data_root")
        params = f" --params {shlex.quote(f'data_root={folder}')}" if folder else ""
        return f"`kedro run{env} --pipeline {pipeline}{params}`"

    def _stored_world_sizes(self, dataset: str) -> set[int]:
        stored: Any = self.catalog[dataset]
        if not stored.exists():
            return set()  # reported as a missing input
        column = pd.read_parquet(str(stored._get_load_path()), columns=["world_size"])["world_size"]
        return set(column.unique().tolist())

    def _origin(self, name: str) -> str:
        """`--params`, or the file of the environment or of conf/base that sets a parameter; `conf` if none is found."""
        path = name.split(".")
        if _holds(self.params.get("runtime_params") or {}, path):
            return "--params"
        conf = Path(self.params.get("project_path") or ".") / (self.params.get("conf_source") or "conf")
        for env in (self.params.get("env") or "local", "base"):
            for file in sorted((conf / env).glob("parameters*.yml")):
                if path[-1] in (text := file.read_text(encoding="utf-8")) and _holds(yaml.safe_load(text) or {}, path):
                    return str(file.relative_to(conf.parent))
        return "conf"


def _holds(values: Any, path: list[str]) -> bool:
    """Whether nested mappings have a value at `path`."""
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


Problems = Iterator[str]
