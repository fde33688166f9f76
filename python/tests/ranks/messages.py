"""Tagged messages: matching by sender and tag, order, wildcards, self-messages, truncation, sendrecv."""

from __future__ import annotations

import numpy as np

import tbccl


def int_array(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


with tbccl.init(timeout=60) as comm:
    size, rank = comm.size, comm.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    out = np.zeros(2, np.int64)
    # All ranks send before they receive, short messages and long ones.
    for count in (1, 100, 1_000_000):
        data = np.full(count, rank, np.float32)
        received = np.empty_like(data)
        send_work = comm.send_async(data, right, 7)
        assert comm.recv(received, left, 7) is received and (received == left).all()
        send_work.result(30)
        assert (comm.sendrecv(data, left, received, right) == right).all()
    # Receives match by tag; messages of one tag keep their order.
    comm.send(int_array(1, 10), right, tag=1)
    comm.send(int_array(2, 20), right, tag=2)
    comm.send(int_array(3, 30), right, tag=1)
    assert comm.recv(out, left, tag=2)[0] == 2
    assert comm.recv(out, left, tag=1)[0] == 1 and comm.recv(out, left, tag=1)[0] == 3
    # From any rank, with any tag, and shorter than the buffer.
    comm.barrier()
    comm.send(int_array(rank), right, tag=rank)
    out[:] = -1
    recv_work = comm.recv_async(out)
    assert recv_work.result(30) is out and out.tolist() == [left, -1]
    assert (recv_work.source, recv_work.tag, recv_work.nbytes) == (left, left, 8)
    # A message of the rank to itself.
    recv_work = comm.recv_async(out, rank, 5)
    assert recv_work.wait(0.01) is False and not recv_work.done() and recv_work.source is None
    comm.send(int_array(4, 5), rank, 5)
    assert recv_work.result(30).tolist() == [4, 5]
    # A message longer than the buffer is lost; the next one arrives.
    comm.send(int_array(1, 2, 3), right, 1)
    comm.send(int_array(4, 4), right, 1)
    try:
        comm.recv(out, left, 1)
    except tbccl.TruncatedError as error:
        assert error.peer == left and "24" in str(error) and "16" in str(error), error
    else:
        raise AssertionError("a truncated message was accepted")
    assert comm.recv(out, left, 1).tolist() == [4, 4]
    # Beside collectives in flight.
    works = [comm.all_reduce_async(np.full(1000, 1.0)) for _ in range(5)]
    assert comm.sendrecv(int_array(9), right, int_array(0), left)[0] == 9
    assert all((recv_work.result(30) == size).all() for recv_work in works)
    for wrong in (lambda: comm.send(out, size), lambda: comm.recv(out, -2), lambda: comm.send(out, 0, -1)):
        try:
            wrong()
        except tbccl.InvalidArgumentError:
            pass
        else:
            raise AssertionError("an invalid rank or tag was accepted")
    # A communicator without tagged messages.
    part = comm.split(0, mail=False)
    try:
        part.send(out, 0)
    except tbccl.UsageError as error:
        assert "mail=False" in str(error)
    part.close()
    comm.barrier()
