"""The judge of every comparison: measures steps under the plans of sharders, and stores a record per task.

A stopped run resumes from the records. A record holds the steps of all plans of a task, which took turns; if one of
them changes, all are measured again, so that the machine's state affects all sharders alike.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import pandas as pd

from neuroshard_pipeline.evaluation.digests import content, digest
from neuroshard_pipeline.evaluation.steps import plans_to_time
from neuroshard_pipeline.host import OtherPrograms, ranks_side_by_side
from neuroshard_pipeline.lab.device import ModelledDevice
from neuroshard_pipeline.lab.network import NetworkParams
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.step import step_cost_ms
from neuroshard_pipeline.measurement.costs import Records, loaded
from neuroshard_pipeline.measurement.hardware import fingerprint
from neuroshard_pipeline.measurement.identity import Identity, name_of
from neuroshard_pipeline.search.models import CommModel
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.truth.params import JUDGES, JudgeParams
from neuroshard_pipeline.torchrec_bridge.truth.steps import Group, step_groups, task_batches, timed_groups
from neuroshard_pipeline.torchrec_bridge.virtual.networks import modelled_network

_LOGGER = logging.getLogger(__name__)

#: Parameters that change no timing of a step.
_NOT_IDENTIFYING = {"judge", "most_ranks", "quantile", "time_budget_s", "least_rounds", "timeout_s"}


class Judgement(NamedTuple):
    """The plans that a judge can measure (`plans_to_time`), and the key of the record of every task, by `task_id`."""

    plans: tuple[Plan, ...]
    keys: Mapping[str, str]


def judged(plans: Sequence[Plan], params: JudgeParams) -> Judgement:
    """The plans that the judge of `params` measures, and the keys of their records; says which plans it leaves out."""
    if params.judge != "torchrec":
        return Judgement((), {})
    reasons = {id(plan): _obstacle(plan, params) for plan in plans}
    for reason, count in Counter(filter(None, reasons.values())).items():
        _LOGGER.info("%d of %d plans are not measured: %s", count, len(plans), reason)
    timed = plans_to_time([plan for plan in plans if reasons[id(plan)] is None])
    name, by_task = name_of(identity(params)), defaultdict[str, list[object]](list)
    for plan in timed:
        by_task[plan.task.task_id].append((plan.sharder, plan.shards, plan.ranks, plan.task))
    keys = {task_id: f"{name}/{task_id}-{digest(content(own))}" for task_id, own in by_task.items()}
    return Judgement(tuple(timed), keys)


def identity(params: JudgeParams) -> Identity:
    """Everything that the timings on this machine depend on, besides the plans."""
    values = params.model_dump(mode="json", exclude=_NOT_IDENTIFYING) | fingerprint(params.backend)
    return {name: json.dumps(value, sort_keys=True) for name, value in sorted(values.items())}


def measure_missing(
    plans: Sequence[Plan],
    params: JudgeParams,
    done: Records,
    progress: Callable[[Sequence[Group]], Iterable[Group]] = iter,
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Measure the plans whose task has no record in `done` yet; `progress` wraps the iteration over groups of plans.

    Yields:
        (key, record): the frame of `steps.measure_steps` with `other_programs`, the share of the cores that other
        programs used, and `identity`. The caller stores each record before it asks for the next.

    Raises:
        RankError: a plan cannot be measured, or the machine has too few GPUs.
    """
    timed, keys = judged(plans, params)
    missing = [plan for plan in timed if keys[plan.task.task_id] not in done]
    groups = [
        group._replace(budget_s=_budget_s(group.plans, missing, params), least_rounds=params.least_rounds)
        for group in step_groups(missing, task_batches(missing, params), params)
    ]
    described, held, others = json.dumps(identity(params)), list[pd.DataFrame](), OtherPrograms()
    for at, (group, steps) in enumerate(_measured(progress(groups), params)):
        held.append(steps.assign(other_programs=others.share(), identity=described))
        task_id = group.plans[0].task.task_id
        if at + 1 == len(groups) or groups[at + 1].plans[0].task.task_id != task_id:
            yield keys[task_id], pd.concat(held, ignore_index=True)
            held = []


def _budget_s(plans: Sequence[Plan], together: Sequence[Plan], params: JudgeParams) -> float | None:
    """The share of the time budget that some of the plans get; by predicted steps, so that all have equal rounds."""
    own_ms, all_ms = (sum(plan.predicted_cost_ms or 1.0 for plan in each) for each in (plans, together))
    return params.time_budget_s and params.time_budget_s * own_ms / all_ms


def _measured(groups: Iterable[Group], params: JudgeParams) -> Iterator[tuple[Group, pd.DataFrame]]:
    """The steps of every group, on real ranks or, if there are too many for this machine, on virtual ones."""
    for per_host, own in groupby(groups, key=lambda group: _ranks_per_virtual_host(group.plans[0], params)):
        networks = None
        if per_host:
            networks = {str(params.network): modelled_network(network_preset(str(params.network), per_host))}
        yield from timed_groups(own, params, networks)


def _ranks_per_virtual_host(plan: Plan, params: JudgeParams) -> int:
    """Ranks per host if the plan has more ranks than run side by side, else 0."""
    return plan.task.ranks_per_host if plan.task.world_size > _most_ranks(params) else 0


def other_network(plans: Sequence[Plan], comm: CommModel, params: JudgeParams) -> str | None:
    """A sentence if some plans run on virtual ranks whose network is not that of the communication cost model."""
    hardware = getattr(comm, "provenance", {}).get("hardware") or {}
    known = (hardware.get("topology") or {}).get("preset") or hardware.get("comm_backend")
    is_virtual = params.network is not None and any(_ranks_per_virtual_host(plan, params) for plan in plans)
    if known in (None, params.network) or not is_virtual:
        return None
    return (
        f"the network between virtual ranks is {params.network}, but the cost models predict collectives of {known}: "
        "sharders minimise other costs than those that are measured; --env virtual trains models of its network"
    )


def recorded_steps(plans: Sequence[Plan], params: JudgeParams, records: Records) -> pd.DataFrame:
    """The steps of all plans that were measured, from the records of their tasks."""
    frames = [loaded(records[key]) for key in judged(plans, params).keys.values() if key in records]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def modelled_costs(plans: Sequence[Plan], device: ModelledDevice, network: NetworkParams) -> pd.DataFrame:
    """Steps of plans by the formulas of the lab, in the columns of `evaluation.steps.measured_costs`."""
    frames = []
    for plan in plans:
        cost = step_cost_ms(plan.task, plan.shards, plan.ranks, device, network)
        columns = {
            "measured_compute_ms": cost.forward_compute_ms + cost.backward_compute_ms,
            "measured_forward_comm_ms": cost.forward_comm_ms,
            "measured_backward_comm_ms": cost.backward_comm_ms,
            "measured_input_dist_ms": cost.input_dist_ms,
            "measured_reduction_ms": cost.reduction_ms,
            "measured_module_ms": cost.module_ms + cost.dense_ms + cost.host_ms,
            "measured_step_ms": cost.step_ms,
        }
        names = {"task_id": plan.task.task_id, "sharder": plan.sharder, "rank": range(plan.task.world_size)}
        frames.append(pd.DataFrame(names | columns))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def judge_text(params: JudgeParams, plan_costs: pd.DataFrame) -> str:
    """What the measured costs of `search.plan_costs` are, for tables and reports."""
    measured = plan_costs.dropna(subset=["measured_step_ms"])
    if measured.empty or params.judge != "torchrec":
        return JUDGES["none" if measured.empty else params.judge]
    plan = [name for name in ("task_id", "sharder", "seed") if name in measured]
    sizes = sorted(set(measured.groupby(plan)["rank"].size()))
    kinds = {"torchrec": [n for n in sizes if n <= _most_ranks(params)]}
    kinds["virtual"] = [n for n in sizes if n not in kinds["torchrec"]]
    return " ".join(
        JUDGES[kind].format(ranks=" and ".join(map(str, own)), network=params.network)
        for kind, own in kinds.items()
        if own
    )


def _obstacle(plan: Plan, params: JudgeParams) -> str | None:
    """Why steps of a plan cannot be timed on this machine."""
    most = _most_ranks(params)
    if plan.task.world_size > most and params.network is None:
        return (
            f"they have more ranks than the {most} that run side by side on this machine, and steps.network is null; "
            "--env virtual measures such plans on virtual ranks, with CPU kernels"
        )
    if plan.task.num_replica_groups > 1:
        return "the averaging of replica groups is not measured"
    if any(table.is_in_host_memory for table in plan.task.tables):
        return "tables in host memory need a GPU"
    if plan.tiers:
        return "tiers are trained by modules of their own"
    return None


def _most_ranks(params: JudgeParams) -> int:
    if params.most_ranks is not None:
        return params.most_ranks
    if params.backend != "nccl":
        return ranks_side_by_side()
    import torch  # imported late: this takes seconds, and pipelines that measure no step import this module too

    return torch.cuda.device_count()
