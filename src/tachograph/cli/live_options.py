"""What `watch` and `record` both let say: which source, which of its GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.cli.options import Arguments

if TYPE_CHECKING:
    from tachograph.live.choose import Wanted


def wanted_of(arguments: Arguments, *, interval_s: float) -> Wanted:
    """Return what both commands' options ask for; what only one of them has is left as it is without."""
    from tachograph.live.choose import Wanted

    return Wanted(
        source=arguments.source,
        urls=tuple(arguments.url),
        gpus=arguments.gpus,
        job=arguments.job,
        simulate=arguments.simulate,
        interval_s=interval_s,
    )
