"""Times TorchRec's embedding module alone under the plans of several sharders, beside their predicted costs.

| module | holds | needs the extra `torchrec` |
| --- | --- | --- |
| `params` | `TruthTaskParams`, `StepParams`, `TruthStepParams` | no |
| `tasks` | `truth_tasks`: draws the tasks | no |
| `variants` | `with_variants`: plans with replicas and row shards | no |
| `steps` | `measure_steps`: times steps under any plans in turns, one process per rank | in the ranks |
| `embeddings` | the sharded collections of one plan on one rank, and one timed step | yes |
| `summary` | `summarise_steps`: predicted beside measured costs | no |
"""
