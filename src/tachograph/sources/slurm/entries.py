"""What `[[sources]]` says of Slurm, for accounting and for running jobs."""

from __future__ import annotations

from tachograph.errors import ConfigError


def check_how(how: str, *, url: str, command: tuple[str, ...]) -> None:
    """Check that it is said who is asked. Errors: ConfigError."""
    if how == "command" and url:
        raise ConfigError('url is given, but how is "command"', do='add how = "rest", or take url away')
    if not command or not all(command):
        raise ConfigError("command is empty", do='write it as ["ssh", "login", "sacct"]')
