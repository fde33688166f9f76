import signal
import time

import torch
import torch.distributed as dist

import tbccl.torch

step("making the process group")
dist.init_process_group("tbccl")
dist.barrier()
if RANK == SIZE - 1:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
step("waiting in a call for a rank that is killed")
began = time.monotonic()
try:
    dist.all_reduce(torch.ones(1000))
except Exception as error:
    seconds = time.monotonic() - began
    name = type(error).__name__
    if f"rank {SIZE - 1}" in str(error):
        check("pass", "exception", f"{name} after {seconds:.1f} s: {error}")
    else:
        check("fail", "exception", f"{name} does not name rank {SIZE - 1}: {error}", REPORT)
else:
    check("fail", "exception", "the call with a killed rank succeeded", REPORT)
sys.stdout.flush()
os._exit(0)
