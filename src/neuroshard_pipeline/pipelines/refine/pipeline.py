"""Measure what a search chooses, retrain on it, and judge what that was worth."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.pipelines.refine import nodes

#: What is read, by the name that it has in here.
READ = {
    "pool": "augment.table_pool",
    "first_compute_samples": "augment.compute_samples",
    "first_compute_settings": "augment.compute_sample_settings",
    "first_compute_costs": "measure.compute_costs",
    "first_comm_samples": "augment.comm_samples",
    "first_comm_costs": "measure.comm_costs",
    "hardware": "measure.hardware",
    "found_compute_cost_model": "train.compute_cost_model",
    "found_comm_cost_model": "train.comm_cost_model",
    "lineage": "lineage",
}
#: Parameters of other stages, by the name that they have in here.
SHARED = {
    "like": "augment.sharding_tasks",
    "neuroshard": "search.neuroshard",
    "neuroshard_plus": "search.neuroshard_plus",
    "memory": "search.memory",
    "sample_compute": "measure.compute",
    "sample_comm": "measure.comm",
    "plan_compute": "search.compute",
    "plan_comm": "search.comm",
    "ids_seed": "measure.seed",  # the ids of a table must be those that the models were trained on
    "recording": "recording",
    "topology": "topology",
    "train_compute": "train.compute",
    "train_comm": "train.comm",
}
#: What `nodes.unpack` returns; models and their documents become new versions of the stage train's.
UNPACKED = [
    *("compute_cost_model", "comm_cost_model", "metrics", "held_out"),
    *("compute_samples", "compute_sample_settings", "compute_costs", "comm_samples", "comm_costs"),
]


def create_pipeline() -> Pipeline:
    """Cost models → plans and runners-up → measured shard sets → refined cost models → judged on fresh tasks."""
    stage = [
        Node(
            nodes.gather,
            [
                *("pool", "first_compute_samples", "first_compute_settings", "first_compute_costs"),
                *("first_comm_samples", "first_comm_costs"),
            ],
            "training_set",
            name="gather",
        ),
        Node(
            nodes.draw_tasks,
            ["pool", "params:like", "params:rounds", "params:judging"],
            ["tasks", "judging_tasks"],
            name="draw_tasks",
        ),
        Node(nodes.pair_models, ["found_compute_cost_model", "found_comm_cost_model"], "models", name="pair_models"),
        Node(
            nodes.set_up_search,
            ["params:neuroshard", "params:neuroshard_plus", "params:memory"],
            "settings",
            name="set_up_search",
        ),
        _campaigns("rounds", "sample"),
        _campaigns("judging", "plan"),
        Node(
            nodes.refine,
            [
                *("models", "tasks", "params:rounds", "settings", "rounds_campaigns"),
                *("params:train_compute", "params:train_comm", "hardware", "lineage"),
            ],
            "refined",
            name="refine",
        ),
        Node(nodes.unpack, "refined", {name: name for name in UNPACKED}, name="unpack"),
        Node(
            nodes.judge,
            ["models", "refined", "judging_tasks", "params:judging", "settings", "judging_campaigns"],
            "judged",
            name="judge",
        ),
        Node(
            nodes.summarise,
            ["refined", "judged", "lineage"],
            ["plan_costs", "predictions", "summary", "table", "figure"],
            name="summarise",
        ),
    ]
    parameters = {f"params:{name}": f"params:{shared}" for name, shared in SHARED.items()}
    return Pipeline(stage, namespace="refine", inputs=READ, parameters=parameters, tags="refine")


def _campaigns(name: str, protocol: str) -> Node:
    """Campaigns for the samples of the rounds, as those of training, or for plans, as those of the search stage."""
    measured = [f"params:{protocol}_compute", f"params:{protocol}_comm", "params:ids_seed"]
    return Node(
        nodes.set_up_campaigns,
        ["training_set", *measured, "params:recording", "params:topology"],
        f"{name}_campaigns",
        name=f"set_up_{name}_campaigns",
    )
