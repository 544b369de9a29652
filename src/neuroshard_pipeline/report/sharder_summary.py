"""`search.summary` as a table of sharders and as sentences."""

from collections.abc import Mapping
from typing import Any

from neuroshard_pipeline.evaluation.comparison import OURS
from neuroshard_pipeline.host import BUSY_SHARE
from neuroshard_pipeline.report.formats import MISSING, decimals_for, fixed, percent, plural
from neuroshard_pipeline.sharders.registry import TORCHREC

#: With a larger resolution, a run cannot tell sharders apart whose plans differ as much as those of good searches do.
_COARSE = 0.03


def ranked_costs(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """The mean step of every sharder in ms, the cheapest first; sharders without a mean come last, by name.

    The steps are measured, or predicted if no plan was measured.
    """
    costs = {name: values[f"mean_{summary['basis']}_step_ms"] for name, values in summary["sharders"].items()}
    order = sorted(costs, key=lambda name: (costs[name] is None, costs[name] or 0.0, name))
    return {name: costs[name] for name in order}


def sharder_table(summary: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per sharder, the cheapest first."""
    sharders, costs = summary["sharders"], ranked_costs(summary)
    best = min((cost for cost in costs.values() if cost is not None), default=None)
    keys = ["mean_measured_step_ms", "mean_predicted_step_ms"]
    cost_decimals = decimals_for([values[key] for values in sharders.values() for key in keys])
    second_decimals = decimals_for([values["mean_seconds_per_task"] for values in sharders.values()])
    lines = [["sharder", "solved", "measured step ms", "vs best", "predicted step ms", "s/task"]]
    for name, cost in costs.items():
        values = sharders[name]
        measured, predicted = (fixed(values[key], cost_decimals) for key in keys)
        solved = f"{values['tasks_solved']}/{values['tasks_tried']}"
        relative = MISSING if cost is None or not best else f"{cost / best:.3f}"
        lines += [
            [name, solved, measured, relative, predicted, fixed(values["mean_seconds_per_task"], second_decimals)]
        ]
    return lines


def cost_note(summary: Mapping[str, Any]) -> str:
    """What a step is, which tasks its means are taken over, and what the measured steps are."""
    common = int(summary["num_common_tasks"])
    if not common:
        return f"No task has a cost of every sharder, so there are no means to compare. {summary['judge']}"
    left_out = [name for name, cost in ranked_costs(summary).items() if cost is None]
    who = "every sharder" if not left_out else f"every sharder but {' and '.join(left_out)}"
    return (
        "A step is the time of one training step of the embedding modules on the slowest rank: the mean over "
        f"the {plural(common, 'task')} that {who} solved. {summary['judge']}"
    )


def noise_note(noise: Mapping[str, Any], num_tasks: int) -> str:
    """The noise of `search.summary` in words, and what to do if it hides the differences of means over `num_tasks`."""
    limit = noise.get("resolution")
    if limit is None:
        return ""
    note = (
        f"Noise of this run: two measurements of the same plan differ by {percent(noise['difference'])} (median over "
        f"{plural(noise['tasks'], 'task')}), so differences below {percent(limit)} mean nothing on "
        f"{plural(num_tasks, 'task')}."
    )
    share = noise["other_programs"] or 0.0
    if share > BUSY_SHARE:
        note += (
            f" Other programs used {share:.0%} of the cores: close them, empty the data folder with `make clean`, and "
            "run again."
        )
    elif limit > _COARSE:
        note += (
            " This machine is too noisy to tell good sharders apart: measure four times as long, as in `--params "
            "search.steps.rounds=160,search.steps.time_budget_s=null`, or run the stage search on a quieter machine."
        )
    return note


def comparison_notes(summary: Mapping[str, Any]) -> list[str]:
    """Sentences that compare neuroshard_plus with the paper's search, the best heuristic and TorchRec's planner."""
    others = [
        name for name, cost in ranked_costs(summary).items() if name not in (*OURS, *TORCHREC) and cost is not None
    ]
    rivals = [*others[:1], *OURS[1:], *TORCHREC]
    return [
        as_sentence(pair["statement"])
        for rival in rivals
        for pair in summary["pairs"]
        if (pair["ours"], pair["rival"]) == (OURS[0], rival) and pair["ratio"] is not None
    ]


def agreement_note(summary: Mapping[str, Any]) -> str:
    """How well predicted and measured steps agree; empty if no plan was measured."""
    found = summary["agreement"]
    if found["median_error"] is None:
        return ""
    tau = "" if found["tau"] is None else f", and Kendall's tau within a task is {found['tau']:.2f}"
    if tau and found.get("tau_limit") is not None:
        tau += f" (with this run's noise, a prediction without error would have {found['tau_limit']:.2f})"
    return (
        f"The predicted step errs by {percent(found['median_error'])} (median of {found['plans']} plans; predicted / "
        f"measured: {found['median_ratio']:.2f}){tau}."
    )


def as_sentence(statement: str) -> str:
    """The statement of a comparison as a sentence. A sharder's name at the start is not capitalised."""
    start = "No" if statement.startswith("no ") else statement[:2]
    return f"{start}{statement[2:]}."
