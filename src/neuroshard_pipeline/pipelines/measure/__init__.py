"""Stage measure: runs the samples on real kernels and collectives, or takes their costs from a recording or the lab."""
