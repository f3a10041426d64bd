"""What of each page is looked at in a browser: its path, or the views and states here where they
look different.
"""

from __future__ import annotations

from collections.abc import Mapping

# {page of the catalogue: addresses below the server, of the demo}; user000 sees the first of each
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "home": ("/", "/?of=all"),
    "user": ("/user/user000",),
    "account": ("/account/proj00",),
    "jobs": ("/jobs?user=user000&sort=-gpu_hours_lost", "/jobs?user=absent"),
    "job": (
        "/job/1000002",
        "/job/1000316?tab=all",
        "/job/1000411",  # still runs
    ),
    "job_kernels": ("/job/1000002/kernels",),
    "search": ("/search?q=user00", "/search?q=10003", "/search?q=absent"),
    "compare": ("/compare?job=1000002", "/compare?job=1000316&job=1000177&job=1000102"),
    "help": ("/help",),
    "findings": ("/findings", "/findings?finding=job_hang&verdict=unknown"),
    "now": ("/now", "/now?by=job&heat=util&filter=class%3Didle"),
    "waste": ("/waste?by=user&jobs=all",),
    "study": ("/study", "/study?user=absent"),
    "sharing": ("/sharing", "/sharing?runs=1&one=user013%2Ffinetune&other=user001%2Ffinetune"),
    "rules": ("/rules", "/rules?rule=hot_gpu"),
    "status": ("/status",),
    "node": ("/node/nid000029",),
}
