"""A server on a port that answers everything with 403 and a code of S3."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Refusal(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        """Refuse whatever the method is."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = f"<Error><Code>{sys.argv[2]}</Code><Message>no</Message></Error>".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Refusal).serve_forever()
