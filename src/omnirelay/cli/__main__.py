"""`python -m omnirelay.cli`: the command line where the `omnirelay` script is not on the path."""

from omnirelay.cli.main import run

run()
