"""The groups of a user: as the system knows them, or read from a directory with `ldapsearch`."""

from __future__ import annotations

import base64
import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tachograph.catalog.config import ServeOptions, read_secret
from tachograph.catalog.errors import ConfigError
from tachograph.sources.slurm.commands import SiteProgram

Groups: TypeAlias = Callable[[str], frozenset[str]]

_TIMEOUT_S = 10.0
_LARGEST = 1 << 20


def system_groups(user: str) -> frozenset[str]:
    """Return the names of the groups of a user, also those of a directory that the system is connected to.

    >>> system_groups("no such user")
    frozenset()
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return frozenset()
    return frozenset(name for gid in os.getgrouplist(user, entry.pw_gid) if (name := _group_name(gid)))


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""


def ldap_groups(options: ServeOptions) -> Groups:
    """Return a function that reads the groups of a user from a directory.

    Errors: ConfigError for keys that do not fit. The function raises InputError where the directory does not answer.
    """
    if "{user}" not in options.ldap_filter:
        do = "write (&(objectClass=posixGroup)(memberUid={user}))"
        raise ConfigError("serve.ldap_filter does not name {user}", do=do)
    words = ["-x", "-LLL", "-o", "ldif-wrap=no", "-l", "10", "-H", "{ldap_url}", "-b", "{ldap_base}"]
    values = {"ldap_url": options.ldap_url, "ldap_base": options.ldap_base}
    if options.ldap_bind_dn:
        secret = read_secret(options.ldap_password_file, "serve.ldap_password_file")
        if secret.endswith(b"\n"):
            what = "serve.ldap_password_file ends with a line break, which would be part of the password"
            raise ConfigError(what, where=options.ldap_password_file, do="write it with printf %s")
        words += ["-D", "{ldap_bind}", "-y", "{file}"]
        values["ldap_bind"] = options.ldap_bind_dn
        values["file"] = str(Path(options.ldap_password_file).absolute())
    program = SiteProgram(("ldapsearch",), timeout_s=_TIMEOUT_S, largest=_LARGEST)

    def groups(user: str) -> frozenset[str]:
        wanted = options.ldap_filter.replace("{user}", _escaped(user))
        printed = program.output(*words, "{ldap_filter}", "cn", ldap_filter=wanted, **values)
        return frozenset(_names(printed.decode("utf-8", "replace")))

    return groups


def _escaped(value: str) -> str:
    r"""A value in a filter of LDAP, RFC 4515: as bytes, each of which is written as a number.

    >>> _escaped("a*)")
    '\\61\\2a\\29'
    """
    return "".join(f"\\{byte:02x}" for byte in value.encode())


def _names(ldif: str) -> list[str]:
    """The values of `cn` in an answer.

    >>> _names("dn: cn=a,dc=org\\ncn: a\\ncn:: YsO2\\n")
    ['a', 'bö']
    """
    plain = [line.removeprefix("cn: ") for line in ldif.splitlines() if line.startswith("cn: ")]
    coded = [line.removeprefix("cn:: ") for line in ldif.splitlines() if line.startswith("cn:: ")]
    return plain + [base64.b64decode(one).decode("utf-8", "replace") for one in coded]


def groups_of(options: ServeOptions) -> Groups:
    """Return where groups are read: from the directory that is configured, else from the system."""
    return ldap_groups(options) if options.ldap_url else system_groups
