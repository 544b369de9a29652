"""Plans or advises one task of a user with the newest cost models, without measuring anything."""

from kedro.pipeline import Node, Pipeline

from neuroshard_pipeline.advice import Advice
from neuroshard_pipeline.pipelines.plan import nodes
from neuroshard_pipeline.pipelines.shared import SEARCH_PARAMETERS, TRAINED_MODELS, models_node, sharder_settings_node
from neuroshard_pipeline.report.advice_page import advice_html, advice_text
from neuroshard_pipeline.report.plan_page import render_plan
from neuroshard_pipeline.search.plan import Plan


def create_pipeline() -> Pipeline:
    """Table file → plan, explanation, page, TorchRec plan."""
    stage = [
        *_inputs(),
        Node(
            nodes.search_plan,
            ["sharding_task", "models", "sharder_settings", "params:task", "params:torchrec"],
            ["found", "order_in_words"],
            name="search_plan",
        ),
        Node(Plan.to_frame, "found", "plan", name="tabulate_plan"),
        Node(
            nodes.plan_rivals,
            ["sharding_task", "models", "sharder_settings", "params:task"],
            ["rivals", "rivals_without_plan"],
            name="plan_rivals",
        ),
        Node(
            nodes.explain_plan,
            ["found", "order_in_words", "rivals", "rivals_without_plan"],
            "explanation",
            name="explain_plan",
        ),
        Node(render_plan, ["found", "rivals"], "page", name="render_plan"),
        Node(nodes.export_torchrec_plan, ["found", "params:torchrec"], "torchrec_plan", name="export_torchrec_plan"),
    ]
    return Pipeline(
        stage,
        namespace="plan",
        inputs=TRAINED_MODELS,
        parameters=SEARCH_PARAMETERS | {"params:torchrec": "params:search.torchrec"},
        tags="plan",
    )


def create_advice() -> Pipeline:
    """Table file → what would make a step faster, as a table of Parquet, as text and as a page."""
    inputs = ["sharding_task", "models", "sharder_settings", "params:task"]
    stage = [
        *_inputs(),
        Node(nodes.find_advice, inputs, "advice", name="find_advice"),
        Node(Advice.to_frame, "advice", "lines", name="tabulate_advice"),
        Node(advice_text, "advice", "table", name="print_advice"),
        Node(advice_html, "advice", "report", name="render_advice"),
    ]
    parameters = SEARCH_PARAMETERS | {"params:task": "params:plan.task"}
    return Pipeline(stage, namespace="advise", inputs=TRAINED_MODELS, parameters=parameters, tags="advise")


def _inputs() -> list[Node]:
    read_task = Node(nodes.read_task, "params:task", "sharding_task", name="read_task")
    return [models_node(), sharder_settings_node(), read_task]
