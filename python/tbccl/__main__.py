"""Runs the command-line program `tbccl`: `python -m tbccl`."""

from tbccl._paths import main

main()
