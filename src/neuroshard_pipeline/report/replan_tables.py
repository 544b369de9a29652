"""Text about the choices of a change of plan (`replanning`)."""

from pydantic import Field, PositiveInt

from neuroshard_pipeline.parameters import Parameters
from neuroshard_pipeline.replanning import Judgement, Replan
from neuroshard_pipeline.report.formats import MISSING, amount, fixed, percent
from neuroshard_pipeline.report.terminal import aligned_table
from neuroshard_pipeline.search.explain import sum_text

_GIB = 2**30


class VerdictParams(Parameters):
    """When a change of plan pays.

    Attributes:
        steps: training steps for which the chosen plan will run.
        least_saving: share of a step's time that a change must save.
    """

    steps: PositiveInt
    least_saving: float = Field(ge=0, lt=1)


def replan_text(replan: Replan, params: VerdictParams) -> str:
    """The present plan, a table of the choices, and a verdict."""
    return "\n\n".join([judgement_text(replan.judgement), aligned_table(choice_rows(replan)), verdict(replan, params)])


def judgement_text(judgement: Judgement) -> str:
    """What the present plan costs now, part by part on its slowest rank, whether it fits, and what is wrong with it."""
    lines = ["the present plan cannot run as it is"]
    cost = judgement.predicted
    if cost is not None:
        slowest = max(range(len(cost.rank_ms)), key=lambda rank: cost.rank_ms[rank])
        fits = "fits" if judgement.fits else "does not fit"
        lines = [f"the present plan {fits}; predicted step on rank {slowest}: {sum_text(cost, slowest)}"]
    return "\n".join([*lines, *(f"  - {problem}" for problem in judgement.problems)])


def choice_rows(replan: Replan) -> list[list[str]]:
    """Header and one row per choice."""
    header = ["choice", "predicted step ms", "GiB per rank", "GiB over the slowest link", "ms to move"]
    rows = [[*header, "saved ms per step", "90 % interval", "pays after steps"]]
    for choice in replan.choices:
        move, cells = choice.move, [MISSING] * 3
        sizes = [f"{size / _GIB:.3g}" for size in (move.rank_bytes, move.link_bytes)]
        if choice.pays_after is not None:
            interval = "{:+.3f} to {:+.3f}".format(*choice.gain_over(replan.choices[0]))
            cells = [fixed(choice.saved_ms, 3), interval, fixed(choice.pays_after, 0)]
        rows.append([choice.name, fixed(choice.step_ms, 3), *sizes, amount(move.move_ms), *cells])
    return rows


def verdict(replan: Replan, params: VerdictParams) -> str:
    """Which choice to take, and which gains over it the errors of the cost models may outweigh."""
    best, first = replan.best(params.steps, params.least_saving), replan.choices[0]
    text = f"Take {first.name!r}: no other choice is sure to save enough time in {params.steps:,} steps."
    if best is not first:
        share = percent((first.step_ms - best.step_ms) / first.step_ms)
        text = (
            f"Take {best.name!r}: its move takes {amount(best.move.move_ms)} ms once by the cost models' network, and "
            f"every step is predicted to take {share} less than with {first.name!r}."
        )
    doubtful = [each for each in replan.choices if each.step_ms < best.step_ms and each.gain_over(best)[0] <= 0]
    told = [f"{each.name!r} ({percent(1 - each.step_ms / best.step_ms)} less)" for each in doubtful]
    if not told:
        return text
    return f"{text} The cost models are not accurate enough to tell its step apart from those of {', '.join(told)}."
