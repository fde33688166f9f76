"""Runs an unmodified MLX program over tbccl: `python -m tbccl.mlx PROGRAM.py ARGUMENTS`, or `-m MODULE`."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from tbccl.mlx import install

_HELP = """\
usage: python -m tbccl.mlx PROGRAM.py [ARGUMENTS...]
       python -m tbccl.mlx -m MODULE [ARGUMENTS...]

Runs a program of MLX with groups of tbccl, whatever backend it names in mx.distributed.init.
Start one process per rank:

  tbccl run -n 2 -- python -m tbccl.mlx train.py
  tbccl run --hostfile hosts.json -- python -m tbccl.mlx -m mlx_lm lora --train --model ...

The program may start further processes, as exo does. They use tbccl, too: TBCCL_MLX=on is set for them. That
variable does the same for programs that are commands of their own:

  tbccl run -n 2 -x TBCCL_MLX=on -- mlx_lm.server --model MODEL

TBCCL_MLX=off leaves MLX's own backends."""


def main(arguments: list[str]) -> None:
    """Runs the program that the arguments name, as Python itself does."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(_HELP)
        return
    is_module = arguments[:1] == ["-m"]
    program = arguments[1:] if is_module else arguments
    if not program or program[0].startswith("-"):
        sys.exit(_HELP)
    install()
    os.environ.setdefault("TBCCL_MLX", "on")
    sys.argv = program
    if is_module:
        sys.path[0] = ""
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        # Modules beside the program are found, as under Python itself.
        sys.path[0] = str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
