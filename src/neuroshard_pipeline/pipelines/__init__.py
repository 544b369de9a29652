"""The stages as modular pipelines: augment → measure → train → search → report, and plan for user tables."""
