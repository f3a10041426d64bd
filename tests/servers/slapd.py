"""OpenLDAP's server with some groups, for the time of a block."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from servers.process import free_port, listens, program, running

BASE = "dc=example,dc=org"
_CONFIGURATION = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/pid
disallow bind_anon
database mdb
suffix "{base}"
rootdn "cn=admin,{base}"
rootpw secret
directory {folder}/data
"""


@contextmanager
def slapd(folder: Path, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Run slapd with groups {name: users}; give its address."""
    command, add = program("slapd", package="slapd"), program("ldapadd", package="ldap-utils")
    (folder / "data").mkdir(parents=True)
    (folder / "slapd.conf").write_text(_CONFIGURATION.format(folder=folder, base=BASE))
    port = free_port()
    url = f"ldap://127.0.0.1:{port}"
    entries = [f"dn: {BASE}\nobjectClass: dcObject\nobjectClass: organization\no: example\ndc: example\n"]
    for number, (name, users) in enumerate(groups.items()):
        members = "".join(f"memberUid: {user}\n" for user in users)
        entries.append(
            f"dn: cn={name},{BASE}\nobjectClass: posixGroup\ncn: {name}\ngidNumber: {5000 + number}\n{members}"
        )
    with running(
        [command, "-d", "0", "-h", url, "-f", folder / "slapd.conf"],
        ready=lambda: listens(port),
        log=folder / "slapd.log",
    ):
        bind = ["-x", "-H", url, "-D", f"cn=admin,{BASE}", "-w", "secret"]
        subprocess.run([add, *bind], input="\n".join(entries), text=True, check=True, capture_output=True, timeout=60)
        yield url
