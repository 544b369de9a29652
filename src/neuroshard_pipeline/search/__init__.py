"""Search: problems, prices, plans, and the searches between them.

One task takes this way through the files. `problem` combines the task with cost models and a memory model, and embeds
every (table, width) once. `beam` proposes column splits; for each proposal `placement` assigns ranks, with the inner
loop in `greedy_runs`, and `packing` or `exact_fit` where memory is scarce. `local_search` improves the best result with
the changes listed in `moves`. The shards and their ranks are then a `plan.Placement`, the same type that rivals return,
and `price.price_plan` turns every placement into a priced and validated `plan.Plan`. On the side, `changes` finds the
best changes that a plan does not make, `explain` describes a plan in words, and `rank_order` reorders its ranks.

- `models`: protocols of the cost models, and the unit in which searches compare costs
- `memory`: `MemoryModel`, what counts against the memory of a rank
- `params`: `SearchParams`, `LocalSearchParams`, and the defaults of all parameters
- `units`: tables, or tables kept together, with their constraints
- `problem`: `Problem`, every distinct (table, width) of a task with its embedding, cost and memory
- `plan`: `Placement`, `PlanCost`, and `Plan` with its invariants
- `price`: `start_skew_ms` and the other formulas of the embedding cost, `price_plan`, `priced`
- `beam`: beam search over column splits
- `placement`: greedy grid search for the ranks of shards; `greedy_runs`: its compiled inner loop
- `packing`: packing by bytes, and the errors when nothing fits
- `exact_fit`: integer programming that decides whether anything fits, where packing gives up
- `local_search`, `moves`: local search and its moves
- `progress`: a bar for long searches
- `changes`, `explain`: explanation of a plan
- `rank_order`: the order of ranks on unequal links
"""
