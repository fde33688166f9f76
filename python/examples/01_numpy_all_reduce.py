"""All-reduce of numpy arrays: in place, asynchronously, and in registered memory.

    tbccl run -n 2 -- python python/examples/01_numpy_all_reduce.py
"""

import numpy as np

import tbccl

with tbccl.init() as comm:
    gradients = np.full(1000, comm.rank, dtype=np.float32)

    # In place: allocates and copies nothing.
    comm.all_reduce(gradients, "avg", out=gradients)
    if comm.rank == 0:
        print(f"mean of {comm.size} ranks: {gradients[0]}")

    # Asynchronously: the call runs while this rank computes.
    weights = np.linspace(0, 1, 1000, dtype=np.float32)
    work = comm.all_reduce_async(weights)
    norm = float(np.linalg.norm(gradients))
    total = work.result()
    assert np.allclose(total, weights * comm.size) and norm >= 0

    # In registered memory, which devices and peers read in place.
    shared = comm.empty(1000, "float32")
    shared.numpy()[:] = comm.rank + 1
    summed = comm.all_reduce(shared).numpy()
    assert summed[0] == comm.size * (comm.size + 1) / 2
