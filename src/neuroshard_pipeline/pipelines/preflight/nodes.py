"""Checks of the files, sharders, recordings and measurements that the parameters of nodes name."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kedro.pipeline import Node

from neuroshard_pipeline.augment.compute_draws import ComputeSampleParams
from neuroshard_pipeline.augment.pool import PoolParams
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.evaluation.solving import BenchmarkJobs
from neuroshard_pipeline.evaluation.suite_params import (
    BenchmarkSharderParams,
    PublicSuiteParams,
    SuiteParams,
    SuiteSettings,
)
from neuroshard_pipeline.measurement import CommMeasureParams, ComputeMeasureParams, RecordingParams, open_recording
from neuroshard_pipeline.measurement.modelled import require_device
from neuroshard_pipeline.pipelines import judging
from neuroshard_pipeline.pipelines.augment import nodes as augment
from neuroshard_pipeline.pipelines.benchmark import nodes as benchmark
from neuroshard_pipeline.pipelines.benchmark.pipeline import POLICIES
from neuroshard_pipeline.pipelines.measure import nodes as measure
from neuroshard_pipeline.pipelines.params import ContestParams, PlanParams
from neuroshard_pipeline.pipelines.plan import nodes as plan
from neuroshard_pipeline.pipelines.preflight.measuring import (
    comm_problems,
    compute_problems,
    extra_problems,
    gpu_problems,
)
from neuroshard_pipeline.pipelines.preflight.run import PlannedRun, Problems
from neuroshard_pipeline.pipelines.replan import nodes as replan
from neuroshard_pipeline.pipelines.train_check import nodes as train_check
from neuroshard_pipeline.replanning.other_day import DaysParams
from neuroshard_pipeline.search.models import check_hardware
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import LEARNED, TORCHREC, make_sharder
from neuroshard_pipeline.tables.bandwidth_file import read_bandwidths
from neuroshard_pipeline.tables.constraint_file import read_constraints
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task_file import read_tasks
from neuroshard_pipeline.torchrec_bridge.ranks import RankParams
from neuroshard_pipeline.torchrec_bridge.step_costs.drawing import StepPlanParams
from neuroshard_pipeline.torchrec_bridge.step_costs.measuring import measures_steps
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams, TrainTaskParams
from neuroshard_pipeline.torchrec_bridge.train_check.problem import state_problem, stated_task
from neuroshard_pipeline.torchrec_bridge.truth.params import JudgeParams, StepParams
from neuroshard_pipeline.workers import WorkerParams

TASKS = "augment.sharding_tasks"


def node_problems(run: PlannedRun) -> Problems:
    """Problems of all nodes that will run."""
    for node in run.pipeline.nodes:
        if node.func in CHECKS:
            yield from CHECKS[node.func](run, node)


def _table_pool(run: PlannedRun, node: Node) -> Problems:
    yield from _recording(run, node)
    name, pool = run.given(node, PoolParams)
    if pool.dlrm_dataset is not None and not run.given(node, RecordingParams)[1].folder:
        yield from _file_problems(run, f"{name}.dlrm_dataset", pool.dlrm_dataset)


def _recording(run: PlannedRun, node: Node) -> Problems:
    _, params = run.given(node, RecordingParams)
    if params.folder:
        yield from _refusals(lambda: open_recording(params))


def _recorded_costs(run: PlannedRun, node: Node) -> Problems:
    source = {"recorded": open_recording, "modelled": require_device}.get(
        run.given(node, ComputeMeasureParams)[1].backend
    )
    if source is not None:
        yield from _refusals(lambda: source(run.given(node, RecordingParams)[1]))


def _compute_samples(run: PlannedRun, node: Node) -> Problems:
    name, params = run.given(node, ComputeMeasureParams)
    if params.backend in ("fbgemm_cpu", "fbgemm_cuda"):
        drawing = [each for each in run.pipeline.nodes if each.func == augment.provide_compute_samples]
        largest = max((run.given(each, ComputeSampleParams)[1].memory_bytes for each in drawing), default=0)
        yield from compute_problems(run, lambda field: f"{name}.{field}", params, largest)


def _comm_samples(run: PlannedRun, node: Node) -> Problems:
    name, params = run.given(node, CommMeasureParams)
    if params.backend != "topology":
        world_sizes = run.world_sizes("augment.comm_samples") | run.world_sizes("augment.reduction_samples")
        yield from comm_problems(run, lambda field: f"{name}.{field}", params, world_sizes)


def _steps(run: PlannedRun, node: Node) -> Problems:
    (name, plans), (timing, params) = run.given(node, StepPlanParams), run.given(node, StepParams)
    backends = run.given(node, ComputeMeasureParams)[1].backend, run.given(node, CommMeasureParams)[1].backend
    if plans.tasks and measures_steps(*backends, params):
        yield from extra_problems("torchrec", f"{run.setting(f'{name}.tasks', plans.tasks)} (0: no step cost model)")
        if params.backend == "nccl":
            ranks = max(plans.world_sizes)
            yield from gpu_problems(run.setting(f"{timing}.backend", params.backend), params.backend, ranks)


def _judge(run: PlannedRun, node: Node) -> Problems:
    """Problems of the judge that measures plans."""
    name, params = run.given(node, JudgeParams)
    if params.judge == "torchrec":
        yield from extra_problems(
            "torchrec", f"{run.setting(f'{name}.judge', params.judge)} (none: no plan is measured)"
        )
        if params.backend == "nccl":
            setting = run.setting(f"{name}.backend", params.backend)
            yield from gpu_problems(setting, params.backend, params.most_ranks or 1)
        if "train.compute_cost_model" in run.pipeline.inputs():
            yield from _device_problems(run, params.compute_device)


def _modelled_steps(run: PlannedRun, node: Node) -> Problems:
    if run.given(node, JudgeParams)[1].judge == "lab":
        yield from _refusals(lambda: require_device(run.given(node, RecordingParams)[1]))


def _contest(run: PlannedRun, node: Node) -> Problems:
    name, params = run.given(node, ContestParams)
    yield from _sharder_problems(run, f"{name}.sharders", params.sharders)


def _contest_in_workers(run: PlannedRun, node: Node) -> Problems:
    yield from _contest(run, node)
    yield from _executor(run, node)


def _benchmark_contest(run: PlannedRun, node: Node) -> Problems:
    name, params = run.given(node, BenchmarkSharderParams)
    others = [sharder for sharder in params.sharders if sharder not in LEARNED]
    yield from _sharder_problems(run, f"{name}.sharders", others)
    learned = [sharder for sharder in params.sharders if sharder in LEARNED]
    if untrained := " and ".join(sharder for sharder in learned if run.lacks(POLICIES[sharder])):
        train = run.command("train_policies")
        yield f"{name}.sharders: no policy is trained for {untrained}; run {train} first, or leave out {untrained}"


def _executor(run: PlannedRun, node: Node) -> Problems:
    name, params = run.given(node, WorkerParams)
    if params.engine == "ray":
        yield from extra_problems("cluster", run.setting(f"{name}.engine", "ray"))


def _suites(run: PlannedRun, node: Node) -> Problems:
    (_, suites), (_, public) = run.given(node, SuiteParams), run.given(node, PublicSuiteParams)
    for path in suites.user.values():
        yield from _refusals(lambda path=path: read_tasks(path))  # type: ignore[misc]
    for path in sorted({task.tables for task in public.tasks if task.suite in suites.names}):
        yield from _refusals(lambda path=path: read_tables(path))  # type: ignore[misc]


def _user_task(run: PlannedRun, node: Node) -> Problems:
    name, params = run.given(node, PlanParams)
    problems = list(_refusals(lambda: read_tables(params.tables)))
    if params.ids is not None:
        problems += _file_problems(run, f"{name}.ids", params.ids)
    if params.constraints is not None:
        problems += _refusals(lambda: read_constraints(str(params.constraints)))
    yield from problems or _refusals(lambda: plan.read_task(params.model_copy(update={"ids": None})))


def _days(run: PlannedRun, node: Node) -> Problems:
    present, given = run.given(node, replan.PresentParams)
    name, params = run.given(node, DaysParams)
    if given.path is not None:
        yield from _file_problems(run, f"{present}.path", given.path)
        return
    for day in ("planned", "other"):
        path = getattr(params, day)
        if path is None:
            yield f"{present}.path is not set; give the plan that runs, or ids of two days ({name}.{day} is not set)"
        else:
            yield from _file_problems(run, f"{name}.{day}", path)


def _user_search(run: PlannedRun, node: Node) -> Problems:
    name, params = run.given(node, PlanParams)
    yield from _sharder_problems(run, f"{name}.sharder", [params.sharder])
    yield from _sharder_problems(run, f"{name}.rivals", [each for each in params.rivals if each != "torchrec"])
    if params.links is not None:
        yield from _refusals(lambda: read_bandwidths(str(params.links), params.world_size))


def _trained_task(run: PlannedRun, node: Node) -> Problems:
    name, params = run.given(node, TrainTaskParams)
    missing = list(extra_problems("torchrec", "the pipeline train_check"))
    yield from missing
    if missing:
        return
    if params.task_id is None or run.catalog[TASKS].exists():
        (settings,) = run.nodes_of(node.namespace, {SharderSettings})
        memory = SharderSettings(*(run.catalog[each].load() for each in settings.inputs)).memory
        tasks: Any = None if params.task_id is None else run.catalog[TASKS].load()
        training = run.given(node, TrainingParams)[1]
        yield from _refusals(lambda: stated_task(tasks, params, training, memory))
    if params.criteo_file is not None:
        yield from _file_problems(run, f"{name}.criteo_file", params.criteo_file)


def _trained_plans(run: PlannedRun, node: Node) -> Problems:
    yield from _contest(run, node)
    name, params = run.given(node, RankParams)
    if params.backend == "nccl":
        ranks = [
            run.given(each, TrainTaskParams)[1].world_size for each in run.nodes_of(node.namespace, {state_problem})
        ]
        setting = run.setting(f"{name}.backend", params.backend)
        yield from gpu_problems(setting, params.backend, max(ranks, default=1))
    yield from _device_problems(run, params.compute_device)


def _device_problems(run: PlannedRun, compute_device: str) -> Problems:
    """The problem of stored cost models that were measured on another kind of device."""
    stored: list[Any] = [run.catalog[f"train.{kind}_cost_model"] for kind in ("compute", "comm")]
    if all(dataset.exists() for dataset in stored):
        yield from _refusals(lambda: check_hardware(CostModels(*(s.load() for s in stored)), compute_device))


def _sharder_problems(run: PlannedRun, name: str, sharders: Iterable[str]) -> Problems:
    for sharder in sharders:
        yield from _refusals(lambda sharder=sharder: make_sharder(sharder))  # type: ignore[misc]
        if sharder in TORCHREC:
            yield from extra_problems("torchrec", run.setting(name, sharder))


def _file_problems(run: PlannedRun, name: str, path: str) -> Problems:
    """The problem of a file that is not read before the run, because it may be large."""
    if not Path(path).is_file():
        yield f"{run.setting(name, path)}: no such file; correct the path"
    elif not os.access(path, os.R_OK):
        yield f"{run.setting(name, path)}: the file cannot be read; correct its permissions"


def _refusals(call: Callable[[], object]) -> Problems:
    """The message of the error that `call` raises."""
    try:
        call()
    except (NeuroShardError, OSError) as problem:
        yield str(problem)


#: Maps functions of nodes to the checks of their parameters.
CHECKS: dict[Any, Callable[[PlannedRun, Node], Problems]] = {
    augment.provide_table_pool: _table_pool,
    augment.provide_compute_samples: _recording,
    measure.measure_compute: _compute_samples,
    measure.reduce_compute_costs: _recorded_costs,
    measure.measure_comm: _comm_samples,
    measure.measure_steps: _steps,
    judging.measure_steps: _judge,
    judging.reduce_steps: _modelled_steps,
    judging.solve_tasks: _contest_in_workers,
    SuiteSettings: _suites,
    BenchmarkJobs.of: _benchmark_contest,
    benchmark.solve: _executor,
    replan.choose: _days,
    plan.read_task: _user_task,
    plan.search_plan: _user_search,
    state_problem: _trained_task,
    train_check.solve_task: _trained_plans,
}
