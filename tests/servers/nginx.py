"""nginx as a proxy that knows its users by a password and compresses, as docs/serve.md has it,
for a block.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.process import free_port, listens, program, running

_CONFIGURATION = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location {path} {{
      auth_basic "cluster"; auth_basic_user_file {folder}/users;
      proxy_set_header X-Remote-User $remote_user;
      proxy_set_header Host $http_host;
      proxy_pass {upstream};
      {compression}
    }}
  }}
}}
"""


@contextmanager
def nginx(folder: Path, upstream: str, users: dict[str, str], *, path: str = "/") -> Iterator[str]:
    """Run nginx in front of `upstream` for users with passwords; give its address."""
    command = program("nginx", package="nginx-light")
    folder.mkdir(parents=True)
    port = free_port()
    (folder / "users").write_text(
        "".join(f"{name}:{{SHA}}{_sha(password)}\n" for name, password in users.items())
    )
    file = folder / "nginx.conf"
    values = {
        "folder": folder,
        "port": port,
        "upstream": upstream,
        "path": path,
        "compression": _documented_lines(),
    }
    file.write_text(_CONFIGURATION.format(**values))
    with running(
        [command, "-p", folder, "-c", file, "-e", folder / "error.log"],
        ready=lambda: listens(port),
        log=folder / "nginx.log",
    ):
        yield f"http://127.0.0.1:{port}"


def _documented_lines() -> str:
    """The lines of the documentation that let nginx compress."""
    page = (Path(__file__).parents[2] / "docs/serve.md").read_text(encoding="utf-8")
    return " ".join(re.findall(r"^ +(gzip.*;)$", page, re.MULTILINE))


def _sha(password: str) -> str:
    return base64.b64encode(hashlib.sha1(password.encode()).digest()).decode()
