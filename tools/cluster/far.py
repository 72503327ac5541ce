"""A network between hosts that delays packets: ``far.py SECONDS NAMESPACE=ADDRESS...``

A kernel without netem delays no packet. So each host, by the file of its network namespace, gets a
TUN interface ``far``, and this process is the cable between them: what a host sends into its own
comes out at the host of the address, so many seconds later. Packets travel as the sending host's
TCP makes them, up to 64 KiB each, with their checksums left open: 4.5 to 11 Gb/s here, on two CPUs
that it shares with the hosts. It comes before all other threads, and adds some 30 us: of 50 us
become 80, of 1 ms 1.08 (half of TCP's there and back). It ends when it is killed, and the
interfaces with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping

INTERFACE = "far"
MOST = 65536 + 64  # bytes of a packet, and of the header before it

# linux/if_tun.h
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TUN, _NO_INFO, _OFFLOAD_HEADER = 0x0001, 0x1000, 0x4000
_CHECKSUM, _TCP4 = 0x01, 0x02
_HEADER = 10  # bytes of struct virtio_net_hdr


def end_of_cable(namespace: str) -> int:
    """Make the interface in a network namespace, and return its file."""
    with open(namespace) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns", namespace)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    wanted = struct.pack("16sH22x", INTERFACE.encode(), _TUN | _NO_INFO | _OFFLOAD_HEADER)
    fcntl.ioctl(tun, _TUNSETIFF, wanted)
    fcntl.ioctl(tun, _TUNSETOFFLOAD, _CHECKSUM | _TCP4)
    return tun


def carry(seconds: float, of_address: Mapping[bytes, int]) -> None:
    """Pass packets on for ever, each so many seconds after it was sent."""
    tuns = list(of_address.values())
    under_way: deque[tuple[float, int, bytes]] = deque()  # when it arrives, where, and what
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select(tuns, [], [], wait)
        for tun in ready:
            arrives = time.monotonic() + seconds
            while packet := _read(tun):
                to = of_address.get(packet[_HEADER + 16 : _HEADER + 20])  # of IPv4
                if to is not None:
                    under_way.append((arrives, to, packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, to, packet = under_way.popleft()
            os.write(to, packet)


def _read(tun: int) -> bytes:
    try:
        return os.read(tun, MOST)
    except BlockingIOError:
        return b""


def main(seconds: str, *hosts: str) -> None:
    """Be the cable between hosts."""
    of_address = {}
    for host in hosts:
        namespace, _, address = host.partition("=")
        of_address[socket.inet_aton(address)] = end_of_cable(namespace)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    carry(float(seconds), of_address)


if __name__ == "__main__":
    main(*sys.argv[1:])
