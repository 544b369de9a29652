"""Bad parameters, and the words of the message about each."""

from __future__ import annotations

#: Bad values of groups of parameters that exist.
BAD_VALUES = [
    ({"augment": {"pool": {"num_tables": 1}}}, ["augment.pool.num_tables", "greater than or equal to 2", "1"]),
    ({"augment": {"pool": {"num_tables": "many"}}}, ["augment.pool.num_tables", "integer", "many"]),
    ({"augment": {"pool": {"row_scale": 0}}}, ["augment.pool.row_scale", "greater than 0"]),
    ({"augment": {"pool": {"tables": 5}}}, ["augment.pool.tables=5 does not exist; did you mean 'num_tables'?"]),
    (
        {"measure": {"compute": {"visit": 3}}},
        ["measure.compute.visit=3 does not exist; did you mean 'visits'?"],
    ),
    ({"measure": {"comm": {"backend": "glo"}}}, ["measure.comm.backend='glo'", "did you mean 'gloo'?"]),
    ({"plan": {"task": {"sharder": "neroshard"}}}, ["plan.task.sharder", "did you mean 'neuroshard'?"]),
    ({"benchmark": {"suites": {"names": ["paper4"]}}}, ["benchmark.suites", "did you mean 'paper_4'?"]),
    (
        {"benchmark": {"contest": {"sharders": ["mlp", "random"]}}},
        ["benchmark.contest.sharders", "did you mean 'milp'?"],
    ),
    (
        {"benchmark": {"public": {"tasks": [{"suite": "criteo", "row_scales": 1}]}}},
        ["benchmark.public", "row_scales", "did you mean 'row_scale'?"],
    ),
    ({"augment": {"compute_samples": {"dimensions": [3]}}}, ["augment.compute_samples", "4", "3"]),
    ({"augment": {"sharding_tasks": {"memory_fill": 1.5}}}, ["augment.sharding_tasks.memory_fill", "1.5"]),
    ({"measure": {"compute": {"visits": 0}}}, ["measure.compute.visits", "0"]),
    ({"measure": {"compute": {"backend": "tpu"}}}, ["measure.compute.backend", "fbgemm_cpu", "tpu"]),
    ({"measure": {"comm": {"backend": "mpi"}}}, ["measure.comm.backend", "gloo", "mpi"]),
    ({"train": {"compute": {"distillation": "smc2"}}}, ["train.compute.distillation", "smc2"]),
    ({"train": {"comm": {"test_share": 0.9}}}, ["train.comm.test_share", "0.9"]),
    ({"search": {"neuroshard": {"beam_width": -1}}}, ["search.neuroshard.beam_width", "-1"]),
    ({"search": {"neuroshard": {"max_cap_ratio": 0.5}}}, ["search.neuroshard.max_cap_ratio", "0.5"]),
    ({"search": {"contest": {"sharders": []}}}, ["search.contest.sharders"]),
    ({"search": {"torchrec": {"compute_device": "tpu"}}}, ["search.torchrec.compute_device", "cuda", "tpu"]),
    ({"search": {"contest": {"sharders": ["random", "best"]}}}, ["search.contest.sharders", "neuroshard_plus", "best"]),
    ({"search": {"contest": {"sharders": ["neuroshard", "neuroshard"]}}}, ["search.contest.sharders", "once"]),
    ({"benchmark": {"suites": {"names": ["paper_5"]}}}, ["benchmark.suites", "paper_4", "paper_5"]),
    ({"benchmark": {"contest": {"sharders": ["random", "best"]}}}, ["benchmark.contest.sharders", "milp", "best"]),
    ({"plan": {"task": {"memory_gib": -1}}}, ["plan.task.memory_gib", "-1"]),
    ({"plan": {"task": {"memory_gib": float("inf")}}}, ["plan.task.memory_gib", "finite", "inf"]),
    ({"plan": {"task": {"world_size": 1_000_000}}}, ["plan.task.world_size", "4096", "1000000"]),
    ({"plan": {"task": {"sharder": "best"}}}, ["plan.task.sharder", "neuroshard_plus", "best"]),
    ({"plan": {"task": {"optimizer": "adamm"}}}, ["plan.task.optimizer", "rowwise_adagrad", "adamm"]),
    ({"plan": {"task": {"xyzzy": 1}}}, ["plan.task.xyzzy=1 does not exist; use one of tables, world_size"]),
    ({"plan": {"task": {"world_size": "abc"}}}, ["parameter plan.task.world_size='abc': must be a valid integer"]),
    ({"search": {"memory": 5}}, ["parameter search.memory=5: must be a group of parameters"]),
    ({"plan": {"task": {"world_size": True}}}, ["plan.task.world_size=True: must be a number, not true or false"]),
    ({"plan": {"task": {"world_size": 2.5}}}, ["plan.task.world_size=2.5: must be a valid integer"]),
    ({"plan": {"task": {"memory_gib": True}}}, ["plan.task.memory_gib=True: must be a number"]),
    ({"plan": {"task": {"local_world_size": False}}}, ["plan.task.local_world_size=False: must be a number"]),
    ({"plan": {"task": {"tables": 3}}}, ["plan.task.tables=3: must be a valid string; write a path as ./3"]),
    ({"augment": {"pool": {"row_scale": float("inf")}}}, ["augment.pool.row_scale=inf", "finite"]),
    ({"augment": {"sharding_tasks": {"world_sizes": [4, True]}}}, ["world_sizes=[4, True]: must be a number"]),
]


#: Values that contradict others of their group, which is found if each of them alone is good.
CONTRADICTIONS = [
    ({"measure": {"comm": {"local_world_size": 2}}}, ["measure.comm", "torchrun_endpoint", "go together"]),
    ({"augment": {"compute_samples": {"min_tables": 9, "max_tables": 2}}}, ["augment.compute_samples", "min_tables 9"]),
    ({"benchmark": {"suites": {"user": {"tight": "x.csv"}}}}, ["benchmark.suites", "tight", "another"]),
]


#: Bad parameters that a run refuses before or after it looks at all groups.
BAD_ALONE = [
    ({"benchmark": {"judge": {"confidence": 1.5}}}, ["benchmark.judge.confidence", "1.5"]),
    ({"measure": {"seed": "abc"}}, ["parameter measure.seed='abc': must be a valid integer"]),
    ({"measure": {"seed": True}}, ["parameter measure.seed=True: must be a valid integer"]),
    ({"search": {"contest": {"sharders": ["random"]}}}, ["search.torchrec.sharder", "neuroshard", "random"]),
    ({"serch": {"seed": 1}}, ["parameter serch.seed=1 does not exist; did you mean 'search'?"]),
    ({"recoding": {"folder": "x"}}, ["parameter recoding.folder='x' does not exist; did you mean 'recording'?"]),
    ({"qqqq": 1}, ["parameter qqqq=1 does not exist; conf/base/parameters_*.yml lists all parameters"]),
    ({"lab": {"kernels": {"hot_row_us": 1}}}, ["lab.kernels.hot_row_us=1: environments", "edit conf/base/"]),
    ({"plan": 3}, ["parameter plan=3: must be a group of parameters"]),
    ({"plan": {"task": None}}, ["parameter plan.task: ", "None", "must be a group of parameters"]),
    ({"search": None}, ["parameter search=None: must be a group of parameters"]),
    ({"lab": 3}, ["parameter lab=3: must be a group of parameters"]),
    ({"expected_seconds": 3}, ["parameter expected_seconds=3: must be"]),
    (
        {"augment": {"poole": {"seed": 1}}},
        ["augment.poole.seed=1 does not exist; did you mean 'augment.pool'?"],
    ),
]


def refused_together() -> list[tuple[dict, list[list[str]]]]:
    """Parameters of one run each, with at most one bad value of every parameter, and the words about each bad value."""
    runs: list[tuple[dict, list[list[str]]]] = [({}, [])]
    for params, words in BAD_VALUES:
        if all(_merged(run, params) is None for run, _ in runs):
            runs.append(({}, []))
        at, both = next((at, both) for at, (run, _) in enumerate(runs) if (both := _merged(run, params)))
        runs[at] = (both, [*runs[at][1], words])
    together: dict = {}
    for params, _ in CONTRADICTIONS:
        together = _merged(together, params)
    return [*runs, (together, [words for _, words in CONTRADICTIONS])]


def _merged(first: dict, second: dict) -> dict | None:
    """Nested parameters; None if both have a value of the same parameter."""
    both = {**first, **second}
    for key in first.keys() & second.keys():
        if not (isinstance(first[key], dict) and isinstance(second[key], dict)):
            return None
        if (inner := _merged(first[key], second[key])) is None:
            return None
        both[key] = inner
    return both
