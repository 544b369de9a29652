"""Search: the plan and its invariants, the memory model, the simulator, and the searches.

- `plan`: `Plan` (shards on ranks) and `PlanCost`
- `memory`: `MemoryModel`, what counts against the memory of a rank
- `params`: `SearchParams`, `PlusParams`
- `simulator`: predicted embedding cost of plans, many at once
- `units`: tables, or tables kept together, with what constraints ask of them
- `kinds`: `ShardKinds`, every distinct (table, width) of a search
- `placement`: greedy grid search for the ranks of shards
- `greedy_runs`: its inner loop, all runs in lockstep, compiled
- `columns`: beam search over column splits
- `packing`: packing by bytes, and the errors when nothing fits
- `exact_fit`: an arrangement, or the proof that there is none, where packing gives up
- `moves`, `refine`: local search
- `progress`: a bar for long searches
- `bounds`: what no plan can cost less than
- `rank_order`: which physical rank takes which shards, where links differ
- `changes`: the best single changes that a plan does not make
- `explain`: a plan in words
"""
