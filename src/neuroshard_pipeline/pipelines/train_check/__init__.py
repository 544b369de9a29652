"""Trains a DLRM under several sharders' plans: `kedro run --pipeline train_check`."""
