"""An API server of Kubernetes for tests: pods by list and watch, owners by name, as a real one
answers them (API reference, "API concepts").
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Document = dict[str, Any]


def pod(
    name: str,
    uid: str,
    *,
    namespace: str = "ml",
    owner: tuple[str, str, str, str] | None = None,
    node: str = "gpu01.example.org",
    resources: dict[str, str] | None = None,
    phase: str = "Running",
    start: str | None = "2026-03-01T10:00:05Z",
    end: str | None = None,
    code: int = 0,
    reason: str = "Completed",
    labels: dict[str, str] | None = None,
) -> Document:
    """Return a pod with one container, as `kubectl get pod -o json` prints it."""
    state: Document = {"waiting": {"reason": "ContainerCreating"}}
    if start is not None:
        state = {"running": {"startedAt": start}}
    if end is not None:
        ended = {"containerID": "containerd://5b", "exitCode": code, "reason": reason}
        state = {"terminated": {**ended, "startedAt": start, "finishedAt": end}}
    meta: Document = {
        "creationTimestamp": "2026-03-01T10:00:00Z",
        "labels": labels or {},
        "name": name,
        "namespace": namespace,
        "resourceVersion": "1",
        "uid": uid,
    }
    if owner is not None:
        api, kind, owner_name, owner_uid = owner
        reference = {"apiVersion": api, "blockOwnerDeletion": True, "controller": True}
        named = {"kind": kind, "name": owner_name, "uid": owner_uid}
        meta["ownerReferences"] = [{**reference, **named}]
    asked = resources if resources is not None else {"nvidia.com/gpu": "2"}
    requests = {"cpu": "7500m", "memory": "64Gi", **asked}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {
            "containers": [
                {
                    "image": "registry.example.org/train:1",
                    "name": "main",
                    "resources": {"limits": asked, "requests": requests},
                }
            ],
            "nodeName": node,
            "priorityClassName": "batch-low",
            "restartPolicy": "Never",
        },
        "status": {
            "containerStatuses": [
                {"name": "main", "ready": end is None, "restartCount": 0, "state": state}
            ],
            "phase": phase,
            "qosClass": "Burstable",
            "startTime": start or "2026-03-01T10:00:01Z",
        },
    }


def controller(
    api: str,
    kind: str,
    name: str,
    uid: str,
    *,
    owner: tuple[str, str, str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> Document:
    """Return an owner of pods."""
    document = pod(name, uid, owner=owner, labels=labels)
    document["metadata"]["creationTimestamp"] = "2026-03-01T09:50:00Z"
    return {"apiVersion": api, "kind": kind, "metadata": document["metadata"], "spec": {}}


def status(code: int, reason: str) -> Document:
    """Return the Status object of an error."""
    text = {"status": "Failure", "message": f"{reason}: too old", "reason": reason, "code": code}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, **text}


@dataclass(slots=True)
class ApiState:
    """What the server holds. history: watch events by resource version; kept_from: older versions
    are gone; broken: {path of an owner: bytes in place of its answer, with their status};
    expires_after: pages of a listing after which it cannot be continued.
    """

    pods: dict[str, Document] = field(default_factory=dict)
    owners: dict[str, Document] = field(default_factory=dict)
    broken: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    history: list[tuple[int, Document]] = field(default_factory=list)
    version: int = 100
    kept_from: int = 0
    gone_as_event: bool = True
    cut_after: int | None = None
    expires_after: int | None = None
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, token

    def change(self, kind: str, document: Document) -> None:
        """Add, modify or delete a pod."""
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            self.pods.pop(document["metadata"]["uid"], None)
        else:
            self.pods[document["metadata"]["uid"]] = document
        copy = json.loads(json.dumps(document))
        self.history.append((self.version, {"type": kind, "object": copy}))

    def listing(self, query: dict[str, list[str]]) -> Document:
        """Return a page of the pods."""
        pods = sorted(self.pods.values(), key=lambda one: str(one["metadata"]["uid"]))
        first = int(query.get("continue", ["0"])[0])
        last = first + int(query.get("limit", ["1000"])[0])
        meta: Document = {"resourceVersion": str(self.version)}
        if last < len(pods):
            meta |= {"continue": str(last), "remainingItemCount": len(pods) - last}
        # Items of a list have no kind: it is that of the list.
        items = [
            {key: value for key, value in one.items() if key not in ("kind", "apiVersion")}
            for one in pods[first:last]
        ]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items}

    def is_expired(self, query: dict[str, list[str]]) -> bool:
        """Whether the listing of a page is no longer there."""
        pages = int(query["continue"][0]) // int(query["limit"][0])
        return self.expires_after is not None and pages >= self.expires_after

    def events(self, since: int) -> bytes:
        """Return the answer to a watch."""
        found = [event for version, event in self.history if version > since]
        bookmark = {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": None}}
        meta = {"resourceVersion": str(self.version), "creationTimestamp": None}
        found.append({"type": "BOOKMARK", "object": {**bookmark, "metadata": meta}})
        if since < self.kept_from:
            found = [{"type": "ERROR", "object": status(410, "Expired")}]
        text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in found)
        return text.encode()[: self.cut_after]


@contextmanager
def api_server() -> Iterator[tuple[str, ApiState]]:
    """Run the server; yield its address and its state."""
    state = ApiState()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            state.requests.append((self.command, parts.path, self.headers.get("Authorization", "")))
            if parts.path in state.broken:
                self._send(*state.broken[parts.path])
            elif parts.path != "/api/v1/pods":
                found = state.owners.get(parts.path)
                self._answer(found or status(404, "NotFound"), 200 if found else 404)
            elif "watch" in query:
                since = int(query["resourceVersion"][0])
                if since < state.kept_from and not state.gone_as_event:
                    self._answer(status(410, "Expired"), 410)
                else:
                    self._send(state.events(since), 200)
            elif "continue" in query and state.is_expired(query):
                self._answer(status(410, "Expired"), 410)
            else:
                self._answer(state.listing(query), 200)

        def _answer(self, document: Document, code: int) -> None:
            self._send(json.dumps(document).encode(), code)

        def _send(self, content: bytes, code: int) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
