"""Measures plans and compares sharders.

- `plan_samples`: plans as samples to measure; predicted and measured costs side by side
- `measure_plans`: the campaigns that measure plans
- `anchors`: samples that are measured again, and the drift of the machine that they show
- `plan_intervals`: prediction intervals of plans
- `summary`: sharders compared; `bootstrap`, `pairs`: one against another, with an interval
- `benchmark`: suites of tasks and verdicts; `refinement`: cost models before and after learning from plans
"""
