import signal
import time

import mlx.core as mx

import tbccl.mlx

step("making the group of MLX")
world = tbccl.mlx.init()
mx.eval(mx.distributed.all_sum(mx.ones(8), group=world, stream=mx.cpu))
version = tuple(int(part) for part in mx.__version__.split(".")[:3])
if version < (0, 32, 1):
    text = f"MLX {mx.__version__} ends the process instead of raising an exception"
    check("unknown", "exception", text, "use MLX 0.32.1 or later")
elif RANK == SIZE - 1:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
else:
    step("evaluating an array whose call fails: libc++ ends the process here if it can't throw")
    began = time.monotonic()
    try:
        mx.eval(mx.distributed.all_sum(mx.ones(1000), group=world, stream=mx.cpu))
    except RuntimeError as error:
        seconds = time.monotonic() - began
        if f"rank {SIZE - 1}" in str(error):
            check("pass", "exception", f"RuntimeError after {seconds:.1f} s: {error}")
        else:
            check("fail", "exception", f"the error does not name rank {SIZE - 1}: {error}", REPORT)
    except BaseException as error:
        check("fail", "exception", f"{type(error).__name__} in the place of RuntimeError: {error}", REPORT)
    else:
        check("fail", "exception", "the call with a killed rank succeeded", REPORT)
    # The failed group is not closed in good order.
    sys.stdout.flush()
    os._exit(0)
