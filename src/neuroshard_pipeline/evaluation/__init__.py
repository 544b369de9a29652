"""Measures plans and compares sharders.

A sample is what one measurement runs: one lookup kernel of a rank, or one collective. A campaign measures many samples.

Measuring plans:

- `campaigns`: the two kinds of campaigns that measure samples: of lookups, and of collectives
- `plan_frames`: plans as data frames, and back
- `plan_samples`: the samples that are measured for plans; `measure_plans`: the three campaigns that measure plans
- `anchors`: training samples that are measured again with the plans; `drift`: how much slower or faster the machine has
  become, estimated from the anchors
- `measured_samples`: samples with their costs

Comparing:

- `solving_in_workers`: plans of all sharders for the tasks of the pipeline search, several tasks at the same time
- `totals`: embedding cost and imbalance of plans, as tables of tasks and sharders
- `comparison`: two sharders on the same tasks, with a confidence interval
- `plan_intervals`, `prediction_errors`: prediction intervals and errors of the cost models on plans
- `summary`: the dataset `search.summary`, which compares all sharders

The benchmark:

- `suite_params`, `suites`, `tight_tasks`, `type_tasks`: suites of sharding tasks
- `solving`: plans of all sharders, stored in records from which a stopped run resumes
- `verdicts`: which sharder is best on which suite
"""
