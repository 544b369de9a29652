"""`python -m neuroshard_pipeline`: `kedro run` for an installed package."""

from pathlib import Path

from kedro.framework.project import configure_project

from neuroshard_pipeline.cli import run


def main() -> None:
    """Run the pipeline that the command line names, or the default one."""
    configure_project(Path(__file__).parent.name)
    run()


if __name__ == "__main__":
    main()
