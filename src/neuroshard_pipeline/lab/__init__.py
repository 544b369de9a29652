"""The lab: GPUs and networks modelled from published measurements. Nothing in this package measures.

- `device`: parameters of modelled GPUs, and the cost of one fused lookup on them
- `lookups`: the numbers that describe one fused lookup, from shards or from a published row
- `params`: the shipped numbers, conf/base/parameters_lab.yml
- `network`: parameters of modelled clusters, and the time of NCCL's collectives on them
- `network_presets`: the shipped clusters
- `step`: the cost of a whole training step of TorchRec's embedding modules, for every sharding type
- `step_samples`: random plans with the cost of their steps, for the step cost model
- `host_memory`: what tables in host memory add to a step
- `sequences`: what sending repeated ids of sequence tables once, or dividing ids among tiers, adds to a step; tiers are
  blocks of rows by popularity
- `exchange`: the collectives of a step and the copies around them
- `step_groups`: the shards that share kernels and collectives
- `phases`: the phases of a step (work of every rank, or collectives), and the ranks' waiting for each other
"""
