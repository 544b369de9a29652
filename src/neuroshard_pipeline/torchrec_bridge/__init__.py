"""Plans in TorchRec's terms: as JSON, as TorchRec's own structures, and as a planner for `DistributedModelParallel`.

`plan_json` needs no TorchRec; the other modules need the extra `torchrec`.
"""
