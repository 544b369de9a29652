"""Sentences about predicted costs that are modelled, extrapolated, assumed, approximated or left out, or disturbed.

`models.CostModels.caveats` collects them. The lab, which some of them name, is the package of formulas for costs on
modelled GPUs and networks.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from neuroshard_pipeline.cost_models.comm import ranks_per_host_of
from neuroshard_pipeline.cost_models.step import StepCostModel
from neuroshard_pipeline.host import BUSY_SHARE
from neuroshard_pipeline.tables.host_memory import host_link_bounds
from neuroshard_pipeline.tables.step_work import QUANTITIES
from neuroshard_pipeline.tables.table import whole
from neuroshard_pipeline.tables.task import ShardingTask

#: Key of a step cost model's provenance: the origin of its `prices` and of its `reductions`, `measured` or `modelled`.
COSTS_ARE = "costs_are"

#: What each of the two campaigns measures, whose names are the keys of `other_programs` in a description of hardware.
_CAMPAIGNS = {"compute": "lookups", "comm": "collectives"}

#: The costs to which the two origins in `COSTS_ARE` belong, in words.
_STEP_COSTS = {"prices": "input dist and module costs", "reductions": "costs of reductions"}


def modelled(hardware: Mapping[str, Any], step: StepCostModel | None) -> Iterator[str]:
    """Sentences about costs that come from formulas of the lab, not from measurements."""
    if hardware.get("compute_backend") == "modelled":
        yield f"modelled: compute costs come from a formula for {hardware.get('gpu_model')}, not from measurements"
    if hardware.get("comm_backend") == "topology":
        cluster = hardware.get("topology", {}).get("preset") or "a cluster"
        yield f"modelled: communication costs come from a formula for {cluster}, not from measurements"
    origins = {} if step is None else step.provenance.get(COSTS_ARE, {})
    names = [name for key, name in _STEP_COSTS.items() if origins.get(key) == "modelled"]
    if names:
        yield f"modelled: {' and '.join(names)} come from formulas of the lab, not from measurements"


def busy_machine(hardware: Mapping[str, Any]) -> Iterator[str]:
    """A sentence if other programs used many of the cores while costs were measured (`host.BUSY_SHARE`)."""
    shares = {_CAMPAIGNS[name]: share for name, share in (hardware.get("other_programs") or {}).items() if share}
    if max(shares.values(), default=0.0) > BUSY_SHARE:
        used = " and ".join(f"{share:.0%} of its cores while {noun} were measured" for noun, share in shares.items())
        yield f"busy machine: other programs used {used}; on a quiet machine, costs and plans differ"


def step_extrapolations(task: ShardingTask, step: StepCostModel | None) -> Iterator[str]:
    """Sentences about numbers of ranks or hosts outside the fit of a step cost model, and hosts of replica groups."""
    if step is None:
        return
    groups = {group for curves in step.reductions.curves.values() for group in curves}
    fitted = {"steps": set(step.prices)}
    if task.world_size > 1:  # a single rank reduces nothing
        fitted["reductions"] = {group.world_size for group in groups}
    for noun, worlds in fitted.items():
        if worlds and not min(worlds) <= task.world_size <= max(worlds):
            known = str(min(worlds)) if len(worlds) == 1 else f"{min(worlds)} to {max(worlds)}"
            yield f"extrapolated: world_size {task.world_size}: costs of {noun} were fitted for {known} ranks"
    if groups and task.num_hosts > 1 and all(group.hosts == 1 for group in groups):
        yield f"extrapolated: {task.num_hosts} hosts: costs of reductions were fitted for one host"
    if task.num_replica_groups > 1 and ranks_per_host_of(step.provenance) is None:
        yield f"assumed: ranks of {task.num_replica_groups} replica groups share a host if they have the same shards"


def host_memory(task: ShardingTask, step: StepCostModel | None) -> Iterator[str]:
    """The bytes that a step reads from tables in host memory, and whether the predicted costs contain their price."""
    tables = [table for table in task.tables if table.is_in_host_memory]
    if not tables:
        return
    low, expected, high = np.sum([host_link_bounds(whole(table), task) for table in tables], axis=0) / 1e6
    traffic = f"{expected:.1f} MB per step ({low:.1f} to {high:.1f}, depending on how many repeated reads are avoided)"
    names = f"table {tables[0].name!r}" + (f" and {len(tables) - 1} more" if len(tables) > 1 else "")
    priced = 0.0 if step is None else step.prices_of("module", task.world_size)[list(QUANTITIES).index("host_link")]
    if priced:
        yield f"modelled: {names} in host memory: all ranks together read {traffic} over their host links"
    else:
        yield (
            f"not priced: {names} in host memory: these cost models have no price for host links, over which all ranks "
            f"together read {traffic}"
        )


def unpriced_copies(task: ShardingTask, step: StepCostModel | None) -> Iterator[str]:
    """What `index_dedup` and tiers add to a step, if the step cost model was fitted to steps without them.

    Tiers divide the rows of a sequence table by popularity; every rank or host has copies of popular rows.
    """
    used = task.index_dedup and any(table.pooling == "none" for table in task.tables)
    if step is None or not (used or any(table.tier for table in task.tables)):
        return
    if not step.prices_of("module", task.world_size)[list(QUANTITIES).index("expanded")]:
        yield (
            "not priced: the search for repeated or popular ids, and copying the rows to their places: these cost "
            "models were fitted to steps without index_dedup and tiers"
        )


def approximations(task: ShardingTask, step: StepCostModel | None) -> Iterator[str]:
    """Properties of tables that costs or a search leave out; a step cost model prices weighted ids and mean pooling."""
    as_sums = [table.name for table in task.tables if table.is_weighted or table.pooling == "mean"]
    if as_sums and step is None:
        tables = f"table {as_sums[0]!r}" + (f" and {len(as_sums) - 1} more" if len(as_sums) > 1 else "")
        yield f"approximated: weighted ids or mean pooling of {tables}: lookups are priced as plain sums"
    modules = len({table.embedding_module for table in task.tables})
    if modules > 1:
        yield (
            f"approximated: {modules} modules: a search treats their tables as those of one module; the predicted cost "
            "of its plan prices the kernels and collectives of every module separately"
        )
