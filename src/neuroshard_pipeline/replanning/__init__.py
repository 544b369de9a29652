"""From the plan that runs to the plan that should run: its price now, what a change moves, and when it has paid.

| module | holds |
| --- | --- |
| `present` | `Present`, the plan that runs; `judge`: what it costs on the task of today, and what is wrong with it |
| `moved` | `moved_bytes`: the bytes that every rank sends to every other one; `Move`: these bytes and their time |
| `kept` | the present plan with the fewest changes that the task of today needs |
| `nearest` | the same plan with ranks and columns renamed so that fewer bytes move |
| `descent` | a local search from the present plan that moves at most some bytes per rank |
| `search` | placements that could come after the present plan |
| `days`, `other_day` | `replan_day`: the choices if the popular rows of tiers have changed |
| `choices` | `replan`: keep, at most x bytes per rank, free |
"""

from neuroshard_pipeline.replanning.choices import Choice, Replan, replan
from neuroshard_pipeline.replanning.moved import Move
from neuroshard_pipeline.replanning.present import Judgement, Present, judge

__all__ = ["Choice", "Judgement", "Move", "Present", "Replan", "judge", "replan"]
