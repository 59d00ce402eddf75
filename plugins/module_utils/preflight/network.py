"""Trying the network between nodes: each listens for a moment, and each tries all others. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

LOCK = Path("/run/lock/torchrun-preflight")
LISTEN_SECONDS = 60.0
LAST_SECONDS = 5.0
CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 1.0
# IP and UDP headers, which a packet's size counts too.
HEADERS = 28
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3  # not in Python's socket module


def listen(address: str, port: int, host: str, peers: int) -> dict[str, Any]:
    """Listen in a process of its own, on `port` if it is free (0: not at all) and on a random high one.

    Until each of so many peers has connected, or for LISTEN_SECONDS. It tells whoever connects its name and time, and
    sends datagrams to the high port back. Returns `ports`: the random one and, if it could be bound, `port`; and
    `busy`: why it could not.
    """
    # Two launches may listen at one time; a port of its own is one listener's.
    lock = _end_the_last_one() if port else None
    listeners = [socket.create_server((address, 0), family=_family(address))]
    busy = ""
    if port:
        try:
            listeners.append(socket.create_server((address, port), family=_family(address)))
        except OSError as error:
            busy = os.strerror(error.errno) if error.errno else str(error)
    ports = [listener.getsockname()[1] for listener in listeners]
    datagrams = socket.socket(_family(address), socket.SOCK_DGRAM)
    datagrams.bind((address, ports[0]))
    if os.fork() == 0:
        if lock:
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        _detach([*listeners, datagrams, *([lock] if lock else [])])
        with contextlib.suppress(Exception):
            _serve(listeners, datagrams, host, peers)
        os._exit(0)
    for each in (*listeners, datagrams):
        each.close()
    if lock:
        lock.close()
    return {"ports": ports, "busy": busy}


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _end_the_last_one() -> TextIO:
    """End the listener of an earlier examination, which may still wait; return the file that one holds locked."""
    lock = LOCK.open("a+")
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        lock.seek(0)
        with contextlib.suppress(ValueError, ProcessLookupError):
            os.kill(int(lock.read()), signal.SIGKILL)
        time.sleep(0.01)


def _detach(keep: Sequence[socket.socket | TextIO]) -> None:
    """Leave the caller's session and close what it has open: it shall not wait for this process."""
    os.setsid()
    kept = {each.fileno() for each in keep}
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2 and int(path.name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(path.name))


def _serve(listeners: list[socket.socket], datagrams: socket.socket, host: str, peers: int) -> None:
    deadline = time.monotonic() + LISTEN_SECONDS
    awaited = {listener.fileno(): peers for listener in listeners}
    while (left := deadline - time.monotonic()) > 0:
        for ready in select.select([*listeners, datagrams], [], [], left)[0]:
            with contextlib.suppress(OSError):
                if ready is datagrams:
                    content, sender = datagrams.recvfrom(65536)
                    datagrams.sendto(content[:16], sender)
                    continue
                connection, _ = ready.accept()
                with connection:
                    connection.sendall(json.dumps({"host": host, "time": time.time()}).encode())
                awaited[ready.fileno()] -= 1
                if awaited[ready.fileno()] <= 0:  # the port is free again for who needs it
                    listeners.remove(ready)
                    ready.close()
        if not listeners:  # datagrams follow
            deadline = min(deadline, time.monotonic() + LAST_SECONDS)


def reach(address: str, port: int) -> dict[str, Any]:
    """Connect to a peer that listens; return its `host`, its clock's `offset` and `seconds` taken, or `problem`."""
    before = time.time()
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as connection:
            said = b""
            while part := connection.recv(4096):
                said += part
    except TimeoutError:
        return {"problem": "no answer"}
    except OSError as error:
        return {"problem": error.strerror or str(error)}
    after = time.time()
    try:
        peer = json.loads(said)
    except ValueError:
        return {"problem": "something else listens there"}
    return {"host": peer["host"], "offset": peer["time"] - (before + after) / 2, "seconds": after - before}


def path_carries(address: str, port: int, mtu: int) -> bool | None:
    """Tell whether packets as large as the interface's MTU reach a peer whole; None where not even a small one did."""
    if _family(address) == socket.AF_INET6:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        probe.settimeout(ANSWER_SECONDS)
        probe.connect((address, port))
        answers = []
        for size in (64, mtu - HEADERS):
            answers.append(False)
            for _ in range(2):  # a datagram may be lost
                try:
                    probe.send(bytes(size))
                    answers[-1] = bool(probe.recv(64))
                    break
                except OSError:
                    continue
    return answers[1] if answers[0] else None


def probe(peers: Mapping[str, Mapping[str, Any]], mtu: int | None = None) -> dict[str, dict[str, Any]]:
    """Try all peers at once. `peers` has `address` and `ports` (as `listen` returned them) of each, by name.

    Returns by name what `reach` found on the random port, with `rendezvous` (the same for the other port, if it was
    bound) and, where an MTU is given, `mtu` (see `path_carries`).
    """

    def one(peer: Mapping[str, Any]) -> dict[str, Any]:
        high, *others = peer["ports"]
        found = reach(peer["address"], high)
        if others:
            found["rendezvous"] = reach(peer["address"], others[0])
        if "problem" not in found and mtu:
            found["mtu"] = path_carries(peer["address"], high, mtu)
        return found

    with ThreadPoolExecutor(max_workers=min(32, max(1, len(peers)))) as pool:
        return dict(zip(peers, pool.map(one, peers.values())))
