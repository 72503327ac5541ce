"""Every rank reports its place in the world, and whether operations across hosts are right."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import paddlempi as dist
import ranks_report


def all_reduce_is_right(count: int) -> bool:
    world, rank = dist.get_world_size(), dist.get_rank()
    x = np.arange(count, dtype=np.float64) + rank
    dist.all_reduce(x)
    return bool(np.array_equal(x, np.arange(count) * world + world * (world - 1) / 2))


def subgroup_is_right(ranks: list[int]) -> bool:
    """Check an all_reduce in a group of some ranks; return True on ranks that are no members."""
    group = dist.new_group(ranks)
    if dist.get_rank() not in ranks:
        return True
    x = np.array([dist.get_rank() + 1])
    dist.all_reduce(x, group=group)
    return int(x[0]) == sum(rank + 1 for rank in ranks)


def message_is_right() -> bool:
    """Check a message from the last rank to the first, which are on different hosts."""
    last = dist.get_world_size() - 1
    sent = np.arange(1 << 16, dtype=np.float32)
    if dist.get_rank() == last:
        dist.send(sent, 0)
    elif dist.get_rank() == 0:
        received = np.zeros_like(sent)
        return dist.recv(received, last) == last and bool(np.array_equal(received, sent))
    return True


def many_messages_are_right(count: int = 300) -> bool:
    """Check messages of the last rank that the first one receives after a barrier behind them."""
    last = dist.get_world_size() - 1
    if dist.get_rank() == last:
        works = [dist.isend(np.full(10_000, number), 0, tag=5) for number in range(count)]
    dist.barrier()
    right = True
    if dist.get_rank() == 0:
        for number in range(count):
            received = np.zeros(10_000, int)
            dist.recv(received, last, tag=5)
            right = right and bool((received == number).all())
    elif dist.get_rank() == last:
        for work in works:
            work.wait()
    return right


def messages_of_any_rank_are_right() -> bool:
    """The first rank receives two messages of the last one, which came before it looks."""
    last = dist.get_world_size() - 1
    if dist.get_rank() == last:
        for value in (5, 6):
            dist.send(np.array([value]), 0, tag=6)
    dist.barrier()
    if dist.get_rank() != 0:
        return True
    received = np.zeros((2, 1), int)
    sources = [dist.recv(row, tag=6) for row in received]
    return sources == [last, last] and received.tolist() == [[5], [6]]


def mismatch() -> ranks_report.Facts:
    """The last rank's tensor has one element more than those of the other ranks."""
    last = dist.get_world_size() - 1
    x = np.zeros(3 if dist.get_rank() == last else 2)
    return ranks_report.error_of(lambda: dist.all_reduce(x))


def refusal() -> ranks_report.Facts:
    """Rank 0 passes an object that is no tensor."""
    x = object() if dist.get_rank() == 0 else np.zeros(2)
    return ranks_report.error_of(lambda: dist.all_reduce(x))


def main() -> None:
    start = ranks_report.error_of(lambda: dist.init_process_group(timeout=timedelta(seconds=30)))
    if start["error"]:
        ranks_report.write({"start": start})
        raise SystemExit(1)
    facts: ranks_report.Facts = {
        "start": start,
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
        "local_rank": dist.get_local_rank(),
        "local_size": dist.get_local_size(),
    }
    if dist.get_world_size() == 4:
        facts["right"] = {
            "one element": all_reduce_is_right(1),
            "a megabyte": all_reduce_is_right(1 << 17),
            "a group of one host": subgroup_is_right([2, 3]),
            "a group of both hosts": subgroup_is_right([3, 0]),
            "a message": message_is_right(),
            "many messages": many_messages_are_right(),
            "messages of any rank": messages_of_any_rank_are_right(),
        }
        facts["mismatch"] = mismatch()
        facts["refusal"] = refusal()
        facts["right"]["after the errors"] = all_reduce_is_right(5)
    ranks_report.write(facts)
    dist.destroy_process_group()


main()
