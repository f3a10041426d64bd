"""What of each page is looked at in a browser: its path, or the views and states here where they look different."""

from __future__ import annotations

from collections.abc import Mapping

# {page of the catalogue: addresses below the server, of the demo}
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "home": ("/", "/?of=all"),
    "user": ("/user/user000", "/user/user000?since=2025-03-04"),
    "account": ("/account/proj00",),
    "jobs": ("/jobs", "/jobs?user=user000&sort=-gpu_hours_lost", "/jobs?user=absent"),
    "job": ("/job/1000316",),
    "api_docs": ("/api/docs",),
    "findings": ("/findings", "/findings?finding=job_hang", "/findings?finding=job_hang&verdict=unknown"),
}
