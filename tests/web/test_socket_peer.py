"""Whose process is at the other end of a connection within this machine."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys

import pytest

from tachograph.web.identity.socket_peer import Peer, owner_of, peer_of

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0200007F:9C40 0100007F:2049 01 00000000:00000000 00:00000000 00000000    33        0 11
   1: 0100007F:9C40 0900000A:2049 01 00000000:00000000 00:00000000 00000000    33        0 12
   2: 0100007F:9C40 0100007F:2049 06 00000000:00000000 00:00000000 00000000    33        0 13
   3: 0100007F:9C40 0100007F:2049 01 00000000:00000000 00:00000000 00000000  1000        0 14
"""
DECOYS = """
import encodings.idna, os, pwd, socket, sys
os.setuid(pwd.getpwnam("daemon").pw_uid)
host, port, own = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kept = [socket.create_connection((host, port), source_address=(f"127.0.1.{n}", own)) for n in range(1, 41)]
print("there", flush=True)
sys.stdin.read()
"""


def test_a_connection_is_known_by_addresses_and_ports() -> None:
    assert owner_of(TABLE, ["0100007F:9C40"], ["0100007F:2049"]) == 1000
    assert owner_of(TABLE, ["0100007F:9C41"], ["0100007F:2049"]) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_connections_of_others_with_the_same_ports_are_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        port = server.getsockname()[1]
        client.bind(("127.0.0.1", 0))
        own = client.getsockname()[1]
        with socket.create_server(("127.0.0.3", port), backlog=64):
            words = [sys.executable, "-c", DECOYS, "127.0.0.3", str(port), str(own)]
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as decoys:
                assert decoys.stdout is not None
                assert decoys.stdout.readline() == b"there\n"
                client.connect(("127.0.0.1", port))
                connection, remote = server.accept()
                with connection:
                    assert peer_of(connection, remote) == Peer("127.0.0.1", "root")
                decoys.communicate(timeout=20)


@pytest.mark.parametrize(("host", "target"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")])
def test_addresses_of_both_kinds(host: str, target: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::")
    except (OSError, ValueError) as problem:
        pytest.skip(f"this machine has no such address: {problem}")
    with server, socket.create_connection((target, server.getsockname()[1])):
        connection, remote = server.accept()
        with connection:
            assert peer_of(connection, remote[:2]) == Peer(target, getpass.getuser())
