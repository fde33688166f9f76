"""`python -m tbccl` is the command `tbccl`."""

from tbccl._paths import main

main()
