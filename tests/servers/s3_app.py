"""moto's server on a port, with conditional writes that are atomic, as those of S3 are.

moto looks whether the object is there and writes it in two steps, and serves requests in threads:
two writers that both report `If-None-Match: *` may both succeed. Here such a write is alone.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import run_simple

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def one_at_a_time(application: Application) -> Application:
    """Return the application; requests that depend on what is there wait for each other."""
    lock = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environ:
            return application(environ, start_response)
        with lock:
            return list(application(environ, start_response))

    return answer


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # The application of S3 alone: looking for the service of each request is half of its time.
    application = one_at_a_time(create_backend_app("s3"))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)
