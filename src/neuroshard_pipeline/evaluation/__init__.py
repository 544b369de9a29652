"""Compares plans and sharders.

- `plan_frames`: plans as data frames, and back
- `steps`: from timed steps of plans to their costs, and the noise of the measurement
- `totals`: step and paper's cost of plans, as tables of tasks and sharders
- `comparison`: two sharders on the same tasks, with a confidence interval
- `plan_intervals`, `prediction_errors`: prediction intervals and errors of the cost models on plans
- `summary`: the dataset `search.summary`, which compares all sharders

The benchmark:

- `suite_params`, `suites`, `suite_tasks`: suites of sharding tasks
- `solving`: plans of all sharders, stored in records from which a stopped run resumes
- `verdicts`: which sharder is best on which suite
"""
