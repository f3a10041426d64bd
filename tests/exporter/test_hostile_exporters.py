"""Exporters that answer without end, pack much into little, or speak for nodes that they are not
on.
"""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import scraping
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from scraping import frame, nodes, poll, rejects

from servers.exporter import exporter
from servers.faulty import Reply, SeenRequest, faulty
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.sources.answer_limits import ANSWERS
from tachograph.sources.series import SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

NOW = datetime(2026, 3, 1, tzinfo=UTC)
UTIL = "DCGM_FI_DEV_GPU_UTIL"
LINE = b'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n1"} 5\n'


feeding = partial(scraping.feeding, timeout_s=20.0, every_s=60.0, refresh_s=0.0)


@contextmanager
def endless() -> Iterator[tuple[str, list[int]]]:
    """An exporter whose page has no end; how many bytes each connection took."""
    taken: list[int] = []
    ended = threading.Event()
    piece = LINE * 1000

    def serve(connection: socket.socket) -> None:
        place = len(taken)
        taken.append(0)
        with connection:
            connection.recv(65536)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
            )
            while not ended.is_set():
                try:
                    taken[place] += connection.send(piece)
                except OSError:
                    return

    def accept() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", taken
        finally:
            ended.set()
            for thread in (acceptor, *threads):
                thread.join()


def test_endless_pages_are_cut_off_and_others_land() -> None:
    held = ANSWERS.count
    with endless() as (url, taken), faulty(page_of(LINE)) as good:
        urls = [f"{url}/{number}" for number in range(6)]
        with feeding(*urls, good.url, answer_mib=2) as feed:
            assert nodes(poll(feed)) == ["n1"]
            assert set(feed.outcome.unreachable.values()) == {"answers more than 2 MiB"}
            assert len(feed.outcome.unreachable) == 6
    assert len(taken) == 6
    assert max(taken) < 32 << 20  # what lies in the buffers of the sockets was sent, too
    assert ANSWERS.count == held


def test_labels_that_are_made_up_are_not_remembered_without_end() -> None:
    vocabulary = SeriesVocabulary(characters=125_000)
    tracemalloc.start()
    try:
        for page in range(20):
            labels = [
                f'gpu="0",Hostname="n1",x="{page}-{number}-{"y" * 4000}"' for number in range(25)
            ]
            rows = SeriesRows(SeriesMemory(vocabulary))
            rows.add_page(
                "".join(f"{UTIL}{{{block}}} 5\n" for block in labels).encode(), t=NOW, node="n1"
            )
            assert rows.known == 25
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert left < 1e6  # 2 MB came


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_an_answer_that_comes_byte_by_byte_is_broken_off(head: bytes) -> None:
    """Each byte comes in time. What is behind it waits for the only place."""
    ended = threading.Event()
    broken: list[float] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(head or b"HTTP/1.1 200 OK\r\nX: ")
            began = time.monotonic()
            while not ended.wait(0.05):
                try:
                    connection.sendall(b"x")
                except OSError:
                    broken.append(time.monotonic() - began)
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener, faulty(page_of(LINE)) as good:
        server = threading.Thread(target=serve)
        server.start()
        slow = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with feeding(slow, good.url, parallel=2, timeout_s=0.5, every_s=0.5) as feed:
                for _ in range(100):
                    assert nodes(poll(feed)) == ["n1"]
                    if broken:
                        break
                    time.sleep(0.1)
        finally:
            ended.set()
            server.join()
    assert broken


def page_of(body: bytes, **headers: str) -> Callable[[SeenRequest], Reply]:
    return lambda request: Reply(body, headers={"Content-Type": "text/plain", **headers})


def test_the_limit_holds_for_what_is_unpacked() -> None:
    bomb = gzip.compress(LINE * 400_000)
    assert len(bomb) < 1 << 20
    with (
        faulty(page_of(bomb, **{"Content-Encoding": "gzip"})) as packed,
        faulty(page_of(gzip.compress(LINE), **{"Content-Encoding": "gzip"})) as small,
        faulty(page_of(LINE, **{"Content-Encoding": "br"})) as other,
        faulty(page_of(gzip.compress(LINE)[:-9], **{"Content-Encoding": "gzip"})) as cut,
        feeding(packed.url, small.url, other.url, cut.url, answer_mib=8) as feed,
    ):
        assert nodes(poll(feed)) == ["n1"]
        why = {
            int(label.rpartition(":")[2]): reason
            for label, reason in feed.outcome.unreachable.items()
        }
    damaged = "the answer is damaged: it does not unpack"
    assert why == {packed.port: "answers more than 8 MiB", other.port: damaged, cut.port: damaged}


def test_all_answers_together_are_bounded_and_counted_while_they_are_held() -> None:
    held = ANSWERS.count
    body = LINE * 50_000
    with ExitStack() as stack:
        servers = [stack.enter_context(faulty(page_of(body))) for _ in range(4)]
        stack.callback(setattr, ANSWERS, "limit", ANSWERS.limit)
        ANSWERS.limit = held + len(body) // 2
        with feeding(*(server.url for server in servers)) as feed:
            with pytest.raises(InputError, match="answers of all sources together hold more than"):
                poll(feed)
            ANSWERS.limit = held + 4 * len(body)
            assert nodes(poll(feed)) == ["n1"]
            assert feed.outcome.unreachable == {}
    assert ANSWERS.count == held


def test_an_exporter_speaks_for_its_own_node_only() -> None:
    values = {0: {UTIL: 5}}
    with exporter({"n1": values, "n2": values}) as server, feeding(*server.urls) as feed:
        assert nodes(poll(feed)) == ["n1", "n2"]
        server.gpu("n2", 0).labels["Hostname"] = "n1"
        server.hold("n2", 0, "666")
        chunk = poll(feed)
        (label,) = feed.outcome.other_nodes
        assert (label, feed.outcome.other_nodes[label]) == (server.url("n2").split("/")[2], "n1")
        assert nodes(chunk) == ["n1"]
        assert rejects(chunk)["other_node"] == (1, f"{label} names n1")
        assert not any(
            "666" in part.frame.to_dict(as_series=False).get("job_id", []) for part in chunk.parts
        )
        server.gpu("n2", 0).labels.pop("Hostname")
        assert nodes(poll(feed)) == ["n1", "n2"]
        assert feed.outcome.other_nodes == {}


def test_a_node_that_a_page_says_it_is_must_be_its_own_too() -> None:
    with exporter({"n1": {}, "n2": {}}) as server, feeding(*server.urls) as feed:
        for name in ("n1", "n2"):
            server.nodes[name].more = f'node_uname_info{{nodename="{name}"}} 1\nnode_load1 0.5\n'
        poll(feed)
        server.nodes["n2"].more = 'node_uname_info{nodename="n1"} 1\nnode_load1 9\n'
        chunk = poll(feed)
    assert frame(chunk, "node_samples").select("node", "load_average").rows() == [("n1", 0.5)]
    assert list(feed.outcome.other_nodes.values()) == ["n1"]


def test_one_exporter_for_many_nodes_is_a_setting() -> None:
    values = {0: {UTIL: 5}}
    with (
        exporter({"n1": values}) as server,
        feeding(*server.urls) as feed,
        feeding(*server.urls, many_nodes=True) as proxy,
    ):
        assert nodes(poll(feed)) == nodes(poll(proxy)) == ["n1"]
        server.nodes["n1"].more = f'{UTIL}{{gpu="0",Hostname="n7"}} 9\n'
        assert nodes(poll(feed)) == ["n1"]
        assert nodes(poll(proxy)) == ["n1", "n7"]


def test_another_content_type_is_read_where_it_is_a_page_and_named_where_not() -> None:
    html = Reply(
        b"<html>please log in</html>", headers={"Content-Type": "text/html; charset=utf-8"}
    )
    with (
        faulty(lambda request: html) as login,
        faulty(
            lambda request: Reply(LINE, headers={"Content-Type": "application/octet-stream"})
        ) as odd,
        feeding(login.url, odd.url) as feed,
    ):
        assert nodes(poll(feed)) == ["n1"]
        assert list(feed.outcome.unreachable.values()) == [
            "no metric of this answer (text/html) is known; is it an exporter's?"
        ]


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(address of an exporter that wants a certificate, folder of ca.pem, cert.pem, key.pem,
    both.pem).
    """
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ours = authority.issue_cert("collector.example.org")
    ours.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    ours.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    ours.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    with faulty(page_of(LINE), tls=tls) as server:
        yield server.url, tmp_path


@pytest.mark.parametrize(
    "files", [{"cert_file": "cert.pem", "key_file": "key.pem"}, {"cert_file": "both.pem"}]
)
def test_an_exporter_may_want_our_certificate(
    certified: tuple[str, Path], files: dict[str, str]
) -> None:
    url, folder = certified
    given = {key: str(folder / name) for key, name in {"ca_file": "ca.pem", **files}.items()}
    with feeding(url, **given) as feed:
        assert nodes(poll(feed)) == ["n1"]


def test_without_a_certificate_or_trust_nothing_is_read(certified: tuple[str, Path]) -> None:
    url, folder = certified
    with (
        feeding(url, ca_file=str(folder / "ca.pem")) as feed,
        pytest.raises(InputError, match=r"TLS|broke off"),
    ):
        poll(feed)
    with (
        feeding(url, cert_file=str(folder / "both.pem")) as feed,
        pytest.raises(InputError, match="its certificate is not trusted"),
    ):
        poll(feed)


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("", "key.pem", "key_file is given without cert_file"),
        ("absent.pem", "", "cert_file and key_file cannot be used: No such file"),
        ("ca.pem", "key.pem", "cert_file and key_file cannot be used: key values mismatch"),
        ("cert.pem", "", "cert_file and key_file cannot be used: "),
        ("cert.pem", "locked.pem", "the key has a passphrase"),
    ],
)
def test_a_certificate_that_cannot_be_used_names_the_keys(
    certified: tuple[str, Path], cert: str, key: str, said: str
) -> None:
    url, folder = certified
    key_of = load_pem_private_key((folder / "key.pem").read_bytes(), None)
    locked = BestAvailableEncryption(b"secret")
    (folder / "locked.pem").write_bytes(
        key_of.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
    )
    given = {
        name: str(folder / file) for name, file in (("cert_file", cert), ("key_file", key)) if file
    }
    with (
        pytest.raises(ConfigError, match=said),
        feeding(url, ca_file=str(folder / "ca.pem"), **given),
    ):
        pass
