"""Checks of datasets: missing inputs, unreadable cost models and table files, unwritable folders."""

import os
import tempfile
from pathlib import Path
from typing import Any

from kedro.framework.project import pipelines
from kedro.io import AbstractVersionedDataset, DatasetError

from neuroshard_pipeline.datasets import CostModelDataset, TableFileDataset
from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.pipelines.preflight.run import PlannedRun, Problems


def input_problems(run: PlannedRun) -> Problems:
    """Inputs that are not stored between runs or lack a (pinned) version; models and tables that cannot be read."""
    missing: dict[str, list[str]] = {}
    for name in sorted(run.pipeline.inputs()):
        if name.startswith("params:") or name == "parameters":
            continue
        dataset = run.catalog.get(name)
        if dataset is None:
            yield _not_stored(name)
        elif isinstance(dataset, AbstractVersionedDataset) and dataset._version is not None:
            if dataset.exists() or dataset._version.load or getattr(dataset, "is_optional", False):
                yield from _version_problems(name, dataset)
            else:
                missing.setdefault(_maker(name), []).append(name)
        elif isinstance(dataset, TableFileDataset):
            yield from _load_problems(name, dataset)
    for maker, names in missing.items():
        paths: list[Any] = [run.catalog[name] for name in names]
        below = os.path.commonpath([str(dataset._filepath) for dataset in paths])
        yield f"{', '.join(names)}: no version in {below}; run {run.command(maker)} first"


def output_problems(run: PlannedRun) -> Problems:
    """Folders of outputs that cannot be written."""
    folders = set()
    for name in run.pipeline.all_outputs():
        dataset: Any = run.catalog.get(name)
        path = getattr(dataset, "_filepath", None) or getattr(dataset, "_path", None)
        if path is not None:
            folders.add(_existing(Path(str(path))))
    for folder in sorted(folders):
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as problem:
            yield (
                f"{folder} cannot be written ({problem.strerror}); correct its permissions, or choose another folder "
                "with --params data_root=FOLDER"
            )


def _not_stored(name: str) -> str:
    makers = [node.name for each in set(pipelines) for node in pipelines[each].nodes if name in node.outputs]
    maker = f"--from-nodes {makers[0]}" if makers else f"the node that makes {name}"
    return f"{name} is not stored between runs; start the run at an earlier node, with {maker}"


def _version_problems(name: str, dataset: Any) -> Problems:
    """Problems of a dataset that exists, is optional or has a pinned version."""
    pinned = dataset._version.load
    if dataset.exists():
        yield from _load_problems(name, dataset) if isinstance(dataset, CostModelDataset) else ()
    elif pinned:
        known = ", ".join(dataset.list_versions(full_path=False)[:5]) or "none"
        yield f"{name} has no version {pinned!r} in {dataset._filepath}; newest versions: {known}"


def _load_problems(name: str, dataset: Any) -> Problems:
    try:
        dataset.load()
    except (DatasetError, NeuroShardError) as problem:
        cause = problem.__cause__ if isinstance(problem.__cause__, NeuroShardError) else problem
        yield f"{name}: {cause}"


def _maker(name: str) -> str:
    """Name of the pipeline to run for a dataset: `pretrain` if it makes the dataset, else the smallest that does."""
    makers = [pipeline for pipeline in set(pipelines) if name in pipelines[pipeline].all_outputs()]
    if "pretrain" in makers:
        return "pretrain"
    return min(makers, key=lambda pipeline: len(pipelines[pipeline].nodes), default=name.partition(".")[0])


def _existing(path: Path) -> Path:
    """The path itself if it exists, or else its closest existing parent; either may be a file."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
