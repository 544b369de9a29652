"""Measures plans and compares sharders.

Measuring plans:

- `campaigns`: how samples are measured, in resumable campaigns or in memory
- `plan_frames`: plans as frames, and back
- `plan_samples`: the samples that are measured for plans; `measure_plans`: the three campaigns of plans
- `anchors`: samples that are measured again; `drift`: the machine's drift, estimated from them
- `measured_samples`: samples with their costs; `refinement`: new samples for the training data

Comparing:

- `totals`: embedding cost and imbalance of plans, as tables of tasks and sharders
- `comparison`: two sharders on the same tasks, with a confidence interval
- `plan_intervals`, `prediction_errors`: prediction intervals and errors of the cost models on plans
- `summary`: the dataset `search.summary`, which compares all sharders

The benchmark:

- `suite_params`, `suites`, `tight_tasks`: suites of sharding tasks
- `solving`: plans of all sharders, in resumable records
- `verdicts`: which sharder is best on which suite
"""
