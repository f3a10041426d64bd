"""Who a request is from: each way to prove it, and what proves nothing."""

from __future__ import annotations

import socket
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from marked_lake import ANN, BOB, connect
from starlette.applications import Starlette
from starlette.requests import Request

from tachograph.annexes.serve.application import WebService, create_application
from tachograph.annexes.serve.endpoints import API
from tachograph.annexes.serve.guard import Guard
from tachograph.annexes.serve.identity.identities import Identities
from tachograph.annexes.serve.identity.proof import NotIdentifiedError, Proven
from tachograph.annexes.serve.identity.proxy_header import ProxyAddress, ProxyHeaders
from tachograph.annexes.serve.identity.roles import AGAIN_S, KEPT_S, Roles
from tachograph.annexes.serve.identity.safety import check_safe
from tachograph.annexes.serve.identity.socket_peer import Peer, peer_of
from tachograph.annexes.serve.identity.tokens import create_token, read_tokens, revoke_token
from tachograph.annexes.serve.login import local_path
from tachograph.annexes.serve.registry import DOCUMENTS, ENDPOINTS, PAGES
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.api.viewer import Role
from tachograph.catalog import config
from tachograph.catalog.config import Configuration, ServeOptions
from tachograph.catalog.errors import ConfigError, InputError, NotFoundError
from tachograph.lake.delta import Lake

PAGE = {"accept": "text/html"}


def later(seconds: float = 60.0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_a_token_is_shown_once_and_kept_as_a_hash_that_others_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token, stored = create_token(file, user=ANN, role=Role.USER, expires=later())
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_tokens(file) == (stored,)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_tokens(file)


def test_a_token_has_its_role_until_it_is_revoked_or_expires(tmp_path: Path, marked: Lake) -> None:
    file = tmp_path / "tokens.json"
    token, stored = create_token(file, user=ANN, role=Role.USER, expires=later())
    past, _ = create_token(file, user=ANN, role=Role.ADMIN, expires=later(-1))
    client = connect(marked, token_file=str(file))

    def me(sent: str) -> int:
        return int(
            client.get("/api/v1/me", headers={"authorization": f"Bearer {sent}"}).status_code
        )

    answer = client.get("/api/v1/me", headers={"authorization": f"Bearer {token}"}).json()
    assert (answer["name"], answer["role"], answer["via"], answer["jobs"]) == (
        ANN,
        "user",
        "token",
        2,
    )
    assert [me(past), me(token[:-1]), me(""), me("x.y.z")] == [401] * 4
    client.post("/login", data={"token": token})
    assert client.get("/api/v1/me").status_code == 200
    with pytest.raises(NotFoundError):
        revoke_token(file, "none")
    revoke_token(file, stored.id)
    assert me(token) == 401
    assert client.get("/api/v1/me").status_code == 401, "its session ended with it"


@pytest.mark.parametrize(("before", "after"), [('"role": "user"', '"role": "root"'), ('Z"', '"')])
def test_a_token_of_a_file_that_was_edited_wrongly_proves_nothing(
    tmp_path: Path, marked: Lake, before: str, after: str
) -> None:
    file = tmp_path / "tokens.json"
    token, _ = create_token(file, user=ANN, role=Role.USER, expires=later())
    client = connect(marked, token_file=str(file))
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    answer = client.get("/api/v1/me", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code in (401, 503)


@pytest.mark.parametrize(
    ("options", "groups", "name", "role"),
    [
        ({"admin_users": (ANN,)}, {}, ANN, Role.ADMIN),
        ({"admin_users": (ANN,)}, {}, BOB, Role.USER),
        ({"admin_groups": ("hpc",), "support_users": (ANN,)}, {ANN: {"hpc"}}, ANN, Role.ADMIN),
        ({"support_groups": ("desk",)}, {ANN: {"desk"}}, ANN, Role.SUPPORT),
        ({"support_groups": ("desk",)}, {BOB: {"desk"}}, ANN, Role.USER),
        ({}, {ANN: {"chem"}}, ANN, Role.USER),
    ],
)
def test_roles_follow_from_users_and_groups(
    options: dict[str, Any], groups: dict[str, set[str]], name: str, role: Role
) -> None:
    roles = Roles(ServeOptions(**options), lambda user: frozenset(groups.get(user, ())), dict)
    assert roles.viewer(Proven(name, "test")).role == role


def test_a_role_is_read_again_after_a_minute() -> None:
    now, groups = [0.0], {"desk"}
    options = ServeOptions(support_groups=("desk",))
    roles = Roles(options, lambda _: frozenset(groups), dict, clock=lambda: now[0])
    assert roles.viewer(Proven(ANN, "test")).role == Role.SUPPORT
    groups.clear()
    assert roles.viewer(Proven(ANN, "test")).role == Role.SUPPORT
    now[0] = KEPT_S + 1
    assert roles.viewer(Proven(ANN, "test")).role == Role.USER


def test_what_cannot_be_read_is_not_tried_by_each_request() -> None:
    now, tried = [0.0], []

    def no_answer(*name: str) -> Any:
        tried.append(name)
        raise InputError("sacctmgr does not answer", do="is it running?")

    roles = Roles(ServeOptions(), lambda _: frozenset(), no_answer, clock=lambda: now[0])
    desk = Roles(ServeOptions(support_groups=("desk",)), no_answer, dict, clock=lambda: now[0])
    for _ in range(3):
        for name in (ANN, BOB):
            with pytest.raises(InputError):
                roles.viewer(Proven(name, "test"))
        with pytest.raises(InputError):
            desk.viewer(Proven(ANN, "test"))
    assert tried == [(), (ANN,)]
    now[0] = AGAIN_S
    with pytest.raises(InputError):
        desk.viewer(Proven(ANN, "test"))
    assert tried == [(), (ANN,), (ANN,)]


def test_managers_of_a_file_see_their_accounts(tmp_path: Path, marked: Lake) -> None:
    file = tmp_path / "managers"
    file.write_text(f"# who coordinates what\n{ANN} acctqz,other\n")
    token_file = tmp_path / "tokens.json"
    token, _ = create_token(token_file, user=ANN, role=Role.MANAGER, expires=later())
    client = connect(marked, token_file=str(token_file), managers=str(file))
    answer = client.get("/api/v1/me", headers={"authorization": f"Bearer {token}"}).json()
    assert (answer["role"], answer["accounts"], answer["jobs"]) == (
        "manager",
        ["acctqz", "other"],
        3,
    )
    file.write_text("one two three\n")
    with pytest.raises(ConfigError, match="managers:1"):
        Identities.of(ServeOptions(managers=str(file)))


def test_a_browser_is_led_to_the_login_and_back_and_gets_a_new_session_each_time(
    marked: Lake,
) -> None:
    client = connect(marked, link="secret")
    answer = client.get("/jobs?limit=7", headers=PAGE)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/login?next=%2Fjobs%3Flimit%3D7",
    )
    assert "Log in" in client.get(answer.headers["location"], headers=PAGE).text
    cookies = []
    for _ in range(2):
        answer = client.post("/login", data={"token": "secret", "next": "/jobs?limit=7"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?limit=7")
        cookies.append(client.cookies["tachograph_session"])
    assert cookies[0] != cookies[1]
    client.cookies.clear()
    before = {"cookie": f"tachograph_session={cookies[0]}"}
    assert client.get("/jobs", headers=before).status_code == 401, "the first one ended"
    assert client.get("/login?token=wrong", headers=PAGE).status_code == 401


def test_an_address_with_a_token_of_the_file_begins_no_session(
    tmp_path: Path, marked: Lake
) -> None:
    file = tmp_path / "tokens.json"
    token, _ = create_token(file, user=BOB, role=Role.USER, expires=later())
    client = connect(marked, token_file=str(file))
    answer = client.get("/login", params={"token": token}, headers=PAGE)
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False), (
        "another site could link to it"
    )
    assert (
        client.post(
            "/login", data={"token": token}, headers={"sec-fetch-site": "cross-site"}
        ).status_code
        == 403
    )
    assert client.post("/login", data={"token": token}).status_code == 303


def test_a_cookie_is_for_the_server_alone(marked: Lake) -> None:
    client = connect(marked, link="secret", url="https://hpc.example.org/gpus")
    cookie = client.get("/login?token=secret").headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=lax", "secure", "path=/gpus/"))
    for path in ("/jobs", "/gpus/jobs"):  # as proxies pass it on
        answer = client.get(path, headers=PAGE)
        assert answer.headers["location"].startswith("/gpus/login?next=%2Fgpus%2Fjobs")


@pytest.mark.parametrize(
    "path", ["/jobs/", "/static", "/login/", "/gpus", "/gpus/", "/", "/gpus/jobs/", "/job/7/"]
)
def test_no_answer_leads_to_the_host_that_a_request_names(path: str, marked: Lake) -> None:
    client = connect(
        marked, link="secret", url="https://hpc.example.org/gpus", headers={"host": "evil.example"}
    )
    client.get("/login?token=secret")
    answer = client.get(path, headers=PAGE)
    assert "evil.example" not in f"{answer.headers}"
    assert answer.status_code == (404 if path.strip("/") not in ("", "gpus") else 303)


@pytest.mark.parametrize(
    "target",
    [
        "https://other.example/", "//other.example", "/\\other.example", "\\\\other.example", "/\tother",
        "javascript:a", "/ /x", "", "jobs", "/login?next=/x", "/logout", "http:/jobs", "///x", "/\nSet-Cookie: a=b",
    ],
)  # fmt: skip
def test_a_login_leads_nowhere_else(target: str, marked: Lake) -> None:
    assert local_path(target, "") == "/"
    assert local_path(target, "/gpus") == "/gpus/"
    answer = connect(marked, link="secret").get(
        "/login", params={"token": "secret", "next": target}
    )
    assert answer.headers["location"] == "/"


def test_logging_out_ends_the_session_and_needs_a_page_of_this_service(marked: Lake) -> None:
    client = connect(marked, link="secret")
    assert client.post("/logout").status_code == 401
    client.get("/login?token=secret")
    assert client.get("/logout").status_code == 405
    assert client.post("/logout").status_code == 403
    for foreign in (
        *({"sec-fetch-site": site} for site in ("cross-site", "same-site")),
        {"origin": "null"},
    ):
        assert (
            client.post("/logout", headers={"origin": "http://testserver", **foreign}).status_code
            == 403
        )
    assert client.get("/jobs").status_code == 200
    assert client.post("/logout", headers={"origin": "http://testserver"}).status_code == 303
    assert client.get("/jobs").status_code == 401


def test_a_header_of_an_address_that_is_no_proxy_names_no_one(marked: Lake) -> None:
    named = {"x-remote-user": ANN}
    assert connect(marked, headers=named).get("/api/v1/me").status_code == 401
    assert (
        connect(marked, headers=named, proxies=("10.0.0.0/24",)).get("/api/v1/me").status_code
        == 401
    )


@pytest.mark.parametrize(("host", "target"), [("127.0.0.1", "127.0.0.1"), ("::", "127.0.0.1")])
def test_a_connection_within_the_machine_has_an_address_and_no_user(host: str, target: str) -> None:
    """So nothing is looked up while others wait."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as server,
        socket.create_connection((target, server.getsockname()[1])),
    ):
        connection, remote = server.accept()
        with connection:
            assert peer_of(connection, remote[:2]) == Peer(target)


@pytest.mark.parametrize(
    ("sent", "name"), [("ann", "ann"), ("", None), ("(null)", None), (None, None)]
)
def test_a_proxy_that_names_no_one_names_no_one(sent: str | None, name: str | None) -> None:
    headers = [] if sent is None else [(b"x-remote-user", sent.encode())]
    request = Request({"type": "http", "client": ("10.0.0.5", 1), "headers": headers})
    proven = ProxyHeaders((ProxyAddress.parse("10.0.0.0/24"),), "X-Remote-User").of(request)
    assert (proven.name if proven else None) == name


UNSAFE: dict[str, dict[str, Any]] = {
    "every user": {"proxies": ("127.0.0.1",)},
    "by a Unix socket": {"proxies": ("www-data@127.0.0.1",)},
    "name only the address of the proxy": {"proxies": ("0.0.0.0/0",)},
    "names everyone": {"admin_users": ("*",)},
    "belong together": {"oidc_issuer": "https://login.example.org"},
    "is not safe": {"oidc_issuer": "http://login.example.org", "oidc_client_id": "a"},
    "invalid address": {"url": "https://ann:pw@hpc.example.org"},
}


@pytest.mark.parametrize("reason", UNSAFE)
def test_an_unsafe_configuration_is_refused_with_what_to_do(reason: str) -> None:
    options = ServeOptions(**UNSAFE[reason])

    def check() -> None:
        check_safe(options, host="127.0.0.1")
        Identities.of(options)

    with pytest.raises(ConfigError) as refused:
        check()
    assert reason in str(refused.value)
    assert refused.value.do


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "login1"])
def test_other_machines_reach_no_server_without_a_way_to_prove_who_they_are(
    host: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="other machines"):
        check_safe(ServeOptions(anonymous=True), host=host)
    check_safe(ServeOptions(token_file=str(tmp_path / "tokens")), host=host)


def test_a_name_that_no_user_has_proves_nothing() -> None:
    from tachograph.annexes.serve.identity.proof import proven_name

    names: list[object] = ["", "a b", "a\n", "x" * 300, None, 7, "\x00", "a\u202eb"]
    for name in names:
        with pytest.raises(NotIdentifiedError):
            proven_name(name, "test")


def test_a_limit_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tachograph.toml"
    file.write_text("[serve]\nrequests_per_s = -1.0\n")
    with pytest.raises(ConfigError, match=r"serve\.requests_per_s"):
        config.load(str(file), {})


def test_every_route_is_of_the_catalogue() -> None:
    """What a test of the catalogue walks is all there is, beside these."""
    aside = {"/login", "/login/oidc", "/login/oidc/callback", "/logout", "/static"}
    aside.add("/mcp")  # walked in test_assistants.py
    service = WebService.of(ServedLake(Lake("nowhere"), Configuration()))
    guard = create_application(service)
    assert isinstance(guard, Guard)
    assert isinstance(guard.app, Starlette)
    served = {str(getattr(route, "path", "")) for route in guard.app.routes}
    known = {entry.path for entry in (*PAGES, *DOCUMENTS)} | {
        API + entry.path for entry in ENDPOINTS
    }
    assert {path for path in served - known if not path.startswith("/static/")} == aside
