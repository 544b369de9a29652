"""Stage augment: draws samples to measure and tasks to solve from a pool of embedding tables."""
