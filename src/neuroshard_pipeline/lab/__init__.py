"""The lab: GPUs and networks modelled from published measurements. Nothing in this package measures.

- `device`: parameters of modelled GPUs, and the cost of one fused lookup on them
- `lookups`: the numbers that describe one fused lookup, from shards or from a published row
- `published_lookups`: reads published lookup times
- `fit_device`: fits the numbers that all GPUs share to published lookup times
"""
