"""Messages with tags: matched by sender and tag, in order, from any, to oneself, too long, and to both at once."""

from __future__ import annotations

import numpy as np

import tbccl


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


with tbccl.init(timeout=60) as comm:
    size, rank = comm.size, comm.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    out = np.zeros(2, np.int64)
    # All send first, short and long.
    for count in (1, 100, 1_000_000):
        data = np.full(count, rank, np.float32)
        heard = np.empty_like(data)
        sent = comm.send_async(data, right, 7)
        assert comm.recv(heard, left, 7) is heard and (heard == left).all()
        sent.result(30)
        assert (comm.sendrecv(data, left, heard, right) == right).all()
    # Tags are looked for; what has one tag keeps its order.
    comm.send(ints(1, 10), right, tag=1)
    comm.send(ints(2, 20), right, tag=2)
    comm.send(ints(3, 30), right, tag=1)
    assert comm.recv(out, left, tag=2)[0] == 2
    assert comm.recv(out, left, tag=1)[0] == 1 and comm.recv(out, left, tag=1)[0] == 3
    # From any, with any tag, and shorter than there is room for.
    comm.barrier()
    comm.send(ints(rank), right, tag=rank)
    out[:] = -1
    work = comm.recv_async(out)
    assert work.result(30) is out and (work.source, work.tag, work.nbytes) == (left, left, 8) and out.tolist() == [left, -1]
    # To oneself.
    work = comm.recv_async(out, rank, 5)
    assert work.wait(0.01) is False and not work.done() and work.source is None
    comm.send(ints(4, 5), rank, 5)
    assert work.result(30).tolist() == [4, 5]
    # Too long: that message is gone, the next one is not.
    comm.send(ints(1, 2, 3), right, 1)
    comm.send(ints(4, 4), right, 1)
    try:
        comm.recv(out, left, 1)
    except tbccl.TruncatedError as error:
        assert error.peer == left and "24" in str(error) and "16" in str(error), error
    else:
        raise AssertionError("a message is longer than its memory")
    assert comm.recv(out, left, 1).tolist() == [4, 4]
    # Beside collectives in flight.
    works = [comm.all_reduce_async(np.full(1000, 1.0)) for _ in range(5)]
    assert comm.sendrecv(ints(9), right, ints(0), left)[0] == 9
    assert all((work.result(30) == size).all() for work in works)
    for wrong in (lambda: comm.send(out, size), lambda: comm.recv(out, -2), lambda: comm.send(out, 0, -1)):
        try:
            wrong()
        except tbccl.InvalidArgumentError:
            pass
        else:
            raise AssertionError("a rank or a tag that there is not")
    # A communicator without.
    part = comm.split(0, mail=False)
    try:
        part.send(out, 0)
    except tbccl.UsageError as error:
        assert "mail=False" in str(error)
    part.close()
    comm.barrier()
