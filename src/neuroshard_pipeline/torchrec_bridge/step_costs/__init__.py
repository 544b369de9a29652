"""Measures steps of TorchRec's embedding module under random plans, and fits the step cost model to them.

| module | holds | needs the extra `torchrec` |
| --- | --- | --- |
| `drawing` | `StepPlanParams`, `random_plans` | no |
| `measuring` | `measure_step_costs` | yes, in the processes of the ranks |
| `fitting` | `fit_step_costs`: a step cost model and its held-out errors | no |
"""
