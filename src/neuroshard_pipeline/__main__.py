"""The commands of `neuroshard-pipeline` that need no project folder; any other arguments are those of `kedro run`."""

import sys
from pathlib import Path


def main() -> None:
    """Run the command that the command line names, or else a pipeline as `kedro run` does."""
    if sys.argv[1:2] and sys.argv[1] in ("plan", "replan", "advise"):
        from neuroshard_pipeline.commands import commands

        commands.main(sys.argv[1:], prog_name="neuroshard-pipeline")
    from kedro.framework.project import configure_project

    from neuroshard_pipeline.cli import run

    configure_project(Path(__file__).parent.name)
    run()


if __name__ == "__main__":
    main()
