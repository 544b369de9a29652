"""The Kedro pipelines: the stages augment → measure → train → search → report, and pipelines that build on them."""
