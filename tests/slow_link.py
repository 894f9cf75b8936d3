#!/usr/bin/env python3
"""A slow, lossy link in user space, for kernels without netem: carries Ethernet frames between two
network interfaces, each frame DELAY seconds late, and drops a share LOSS of them.

  slow_link.py INTERFACE INTERFACE DELAY LOSS    until SIGTERM; then says what it carried
  slow_link.py --plain INTERFACE                 turns off checksum and segmentation offload, which
                                                 would hand over unfinished frames
"""
import ctypes
import fcntl
import heapq
import random
import select
import signal
import socket
import struct
import sys
import time

ALL_PROTOCOLS = 3
SIOCETHTOOL = 0x8946
# ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO
OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)


def plain(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            fcntl.ioctl(control, SIOCETHTOOL, struct.pack("16sP16x", interface.encode(), ctypes.addressof(value)))


def carry(interfaces, delay, loss):
    ends = []
    for interface in interfaces:
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        end.bind((interface, 0))
        ends.append(end)
    chance = random.Random(1)
    carried = dropped = 0
    waiting = []  # (when, number, where to, frame)
    running = [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    print("ready", flush=True)
    while running:
        timeout = min(0.1, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.1
        for end in select.select(ends, [], [], timeout)[0]:
            frame, address = end.recvfrom(65536)
            if address[2] == socket.PACKET_OUTGOING:  # our own
                continue
            if chance.random() < loss:
                dropped += 1
                continue
            carried += 1
            other = ends[1 - ends.index(end)]
            heapq.heappush(waiting, (time.monotonic() + delay, carried, other, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, other, frame = heapq.heappop(waiting)
            other.send(frame)
    print(f"carried {carried} frames, each {1000 * delay:g} ms late; dropped {dropped}", flush=True)


if sys.argv[1] == "--plain":
    plain(sys.argv[2])
else:
    carry(sys.argv[1:3], float(sys.argv[3]), float(sys.argv[4]))
