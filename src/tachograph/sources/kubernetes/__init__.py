"""Source and feed `kubernetes`: workloads with GPUs, from the API server or saved listings.

A poll lists the pods once, and then asks what changed since: a watch from the last resource
version, held for some seconds. A watch that the server no longer can answer (410 Gone) is a new
list; pods that are missing in it ended unseen. Only GET requests are sent.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, cast

import msgspec

from tachograph.catalog.chunks import Chunk, next_watermark
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError, UsageError
from tachograph.sources.files import add_files
from tachograph.sources.http import LEAST_ACCESS, HttpServer, RequestError, ServerAccess
from tachograph.sources.kubernetes.workloads import (
    ObjectRef,
    Owner,
    Pod,
    add_workload,
    deletion_time,
    owner_chain,
    read_owner,
    read_pod,
    workload_of,
)
from tachograph.sources.registry import (
    FeedSettings,
    PollOutcome,
    Watermark,
    entry_errors,
    refuse_less,
    settings_in,
)
from tachograph.sources.schedulers.documents import (
    DocumentSource,
    file_suffixes,
    json_document,
    not_of,
)
from tachograph.sources.slurm.exports import AccountingReading, polled_parts
from tachograph.sources.slurm.fields import (
    BadRowError,
    json_example,
    json_number,
    json_objects,
    json_text,
    json_value,
)
from tachograph.sources.slurm.records import RejectedBefore, SlurmCluster, counted_rejects

NAME = "kubernetes"
SUFFIXES = file_suffixes(".json")
_SAVE = "kubectl get pods -A -o json"
_EVERYWHERE = "/api/v1/pods"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_IN_CLUSTER = "https://kubernetes.default.svc"
_GONE: Final = 410
_UNAUTHORIZED: Final = 401  # of our token: no other request would be answered either
_UNREADABLE: Final = (403, 404)  # an owner that is no more, or that we may not read
_FAILURES_OF_KIND: Final = 3  # requests of a poll that may fail for owners of one kind


class KubernetesSettings(ServerAccess, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys of `[[sources]]` of an API server; without `url` that of the pod we run in."""

    every_s: float = 30.0
    namespaces: tuple[str, ...] = ()  # empty: all
    user_labels: tuple[str, ...] = ()  # labels or annotations of pods that name their user
    watch_s: int = 5  # how long a poll waits for changes
    page: int = 500  # pods of one answer


SETTINGS = KubernetesSettings


def connect(settings: FeedSettings, *, configuration: Configuration) -> PodsFeed:
    """Return the feed; nothing is requested yet. Errors: ConfigError naming the key."""
    access = cast("KubernetesSettings", settings)
    with entry_errors(settings.title):
        refuse_less(access, {"watch_s": 1, "page": 1, **LEAST_ACCESS}, where="")
        if not access.url:
            access = msgspec.structs.replace(
                access,
                url=_IN_CLUSTER,
                token_file=access.token_file or str(_SERVICE_ACCOUNT / "token"),
                ca_file=access.ca_file or str(_SERVICE_ACCOUNT / "ca.crt"),
            )
        return PodsFeed(access, SlurmCluster.of(configuration))


@dataclass(slots=True)
class KnownPods:
    """Pods with GPUs and their owners, by UID.

    changed: UIDs of pods that are not handed on yet.
    """

    user_labels: tuple[str, ...] = ()
    pods: dict[str, Pod] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    owners: dict[ObjectRef, Owner] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    rejected: list[tuple[int, str, str]] = field(default_factory=list)
    # {UID of a pod: the workload it was handed on with, whose owner was not read then}
    provisional: dict[str, ObjectRef] = field(default_factory=dict)

    def add(self, document: object, *, place: int = 0, seen: datetime | None = None) -> Pod | None:
        """Note a pod, or another object as an owner; return the pod if it requests GPUs.

        seen: when the pod was so; None: not known, of a saved listing.
        """
        try:
            if (json_text(document, "kind") or "Pod") != "Pod":
                owner = read_owner(document)
                self.owners[owner.ref] = owner
                return None
            pod = read_pod(document, user_labels=self.user_labels)
        except BadRowError as problem:
            self.rejected.append((place, problem.reason, json_example(document)))
            return None
        if pod is None:
            return None
        earlier = self.pods.get(pod.ref.uid)
        pod = pod.following(earlier, seen)
        if pod != earlier:
            self.pods[pod.ref.uid] = pod
            self.changed.add(pod.ref.uid)
        return pod

    def remove(self, uid: str, last_seen: datetime, *, deleted: bool) -> None:
        """Note that a pod is no more; `last_seen`: it was there until then at least."""
        pod = self.pods.get(uid)
        if pod is not None and uid not in self.deleted:
            self.pods[uid] = pod.gone(last_seen, deleted=deleted)
            self.changed.add(uid)
            self.deleted.add(uid)

    def reading(self, cluster: SlurmCluster) -> AccountingReading:
        """Return the workloads of the changed pods, and forget what is over and deleted.

        Steps and allocations are those of the changed pods: the lake has the others. A workload
        that is rejected is read again, as the rows of all its changed pods are missing.
        """
        reading = AccountingReading(rejected=self.rejected)
        self.rejected = []
        workloads: dict[ObjectRef, list[Pod]] = {}
        for pod in sorted(self.pods.values(), key=_order):
            workloads.setdefault(workload_of(pod, self.owners), []).append(pod)
        missing: set[str] = set()
        for workload, pods in workloads.items():
            if self.changed.isdisjoint(pod.ref.uid for pod in pods):
                continue
            self._withdraw(reading, workload, pods, cluster)
            try:
                add_workload(reading, workload, pods, self.owners, cluster, changed=self.changed)
            except BadRowError as problem:
                missing.update(self.changed.intersection(pod.ref.uid for pod in pods))
                example = f"{workload.kind} {workload.name}.{workload.namespace}"
                reading.rejected.append((0, problem.reason, example))
            else:
                if not self._is_named(workload, pods):
                    self.provisional.update((pod.ref.uid, workload) for pod in pods)
            if all(pod.ref.uid in self.deleted for pod in pods):
                for pod in pods:
                    del self.pods[pod.ref.uid]
                    self.deleted.discard(pod.ref.uid)
                    self.provisional.pop(pod.ref.uid, None)
        self.changed = missing.intersection(self.pods)
        return reading

    def forget_owners(self) -> set[ObjectRef]:
        """Forget owners that no known pod has any more; return those that pods have.

        Owners of finished workloads would otherwise fill the memory of a service over months.
        """
        refs: set[ObjectRef] = set()
        for pod in self.pods.values():
            refs.update(owner_chain(pod, self.owners))
        self.owners = {ref: owner for ref, owner in self.owners.items() if ref in refs}
        return refs

    def _withdraw(
        self,
        reading: AccountingReading,
        workload: ObjectRef,
        pods: list[Pod],
        cluster: SlurmCluster,
    ) -> None:
        """End the job whose id changes now that its owner was read, at its start.

        Otherwise two jobs would hold the GPUs of a pod, the earlier one for ever.
        """
        named = self._is_named(workload, pods)
        earlier: dict[ObjectRef, list[Pod]] = {}
        for pod in pods:
            before = self.provisional.get(pod.ref.uid)
            if before is not None and (named or before != workload):
                del self.provisional[pod.ref.uid]
                withdrawn = replace(pod, state="CANCELLED", end=pod.start)
                earlier.setdefault(before, []).append(withdrawn)
        for before, withdrawn_pods in earlier.items():
            unread = {ref: owner for ref, owner in self.owners.items() if ref != before}
            with suppress(BadRowError):  # what cannot be a job was none before
                add_workload(reading, before, withdrawn_pods, unread, cluster)
                row = reading.jobs[-1]
                if row["start"] is not None:
                    row |= {"end": row["start"], "elapsed_s": 0.0}

    def _is_named(self, workload: ObjectRef, pods: list[Pod]) -> bool:
        """Whether the server named a workload, so that its id is its UID."""
        return workload in self.owners or workload == pods[0].ref


def _order(pod: Pod) -> tuple[bool, datetime | None, str]:
    return (pod.created is None, pod.created or pod.start, pod.ref.uid)


class PodsFeed:
    """Workloads as a stream: a chunk per poll, with those that changed."""

    def __init__(self, settings: KubernetesSettings, cluster: SlurmCluster) -> None:
        self.outcome = PollOutcome()
        self._settings = settings
        self._cluster = cluster
        self._server = HttpServer(settings, own_words=_message)
        self._known = KnownPods(settings.user_labels)
        # {path: the resource version up to which it was read}
        self._versions: dict[str, str] = {}
        self._last_seen: datetime | None = None
        self._unreadable: set[ObjectRef] = set()
        # Owners to request at the next poll: the request failed, or was left out after failures.
        self._failed: set[ObjectRef] = set()
        self._postponed: set[ObjectRef] = set()
        self._rejected_before = RejectedBefore()

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield the workloads that changed. Errors: InputError naming the address."""
        self.outcome = PollOutcome()
        before = watermark(self._settings.stream)
        yield self.fetch(self._settings.stream, now=now, mark=next_watermark(now, before=before))

    def fetch(self, name: str, *, now: datetime, mark: datetime | None = None) -> Chunk:
        """Return what changed as chunk `name`. Errors: as `poll`."""
        objects = without = 0
        namespaces = self._settings.namespaces
        for path in map(_path, namespaces) if namespaces else [_EVERYWHERE]:
            of_path, others = self._read(path, now)
            objects += of_path
            without += others
        self._look_up_owners()
        self._last_seen = now
        if self._server.skew_s is not None:
            self.outcome.skew_s[self._server.where] = self._server.skew_s
        reading = self._known.reading(self._cluster)
        self._unreadable &= self._known.forget_owners()
        rejects = counted_rejects(self._rejected_before.new(reading.rejected))
        objects_used = objects - without - sum(reject.count for reject in rejects)
        parts = polled_parts(reading, rejects, rows_used=objects_used)
        passed = {"no_gpus": without} if without else {}
        return Chunk(name, NAME, self._server.where, parts, objects, mark, passed=passed)

    def close(self) -> None:
        """Close connections."""
        self._server.close()

    def _read(self, path: str, now: datetime) -> tuple[int, int]:
        """List or watch; return (pods read, those without GPUs)."""
        version = self._versions.get(path)
        if version is not None:
            events = self._watch(path, version)
            if events is not None:
                return self._take(path, events, now)
        return self._list(path, now)

    def _list(self, path: str, now: datetime) -> tuple[int, int]:
        """Read all pods; those that are known and missing have ended since they were seen.

        Of each page only UIDs are kept: most pods of a cluster request no GPU.
        """
        known_pods = self._known
        rejected = len(known_pods.rejected)
        listed: set[str | None] = set()
        count = without = 0
        query = {"limit": str(self._settings.page)}
        while True:
            try:
                document = json_document(self._server.get(path, query).content, self._server.where)
            except RequestError as problem:
                if problem.status != _GONE or "limit" not in query:
                    raise
                # The list was too old to go on: read it in one answer.
                del known_pods.rejected[rejected:]
                listed.clear()
                count = without = 0
                query = {}
                continue
            for pod in json_objects(document, "items"):
                listed.add(json_text(pod, "metadata", "uid"))
                count += 1
                without += known_pods.add(pod, seen=now) is None
            following = json_text(document, "metadata", "continue")
            if not following:
                break
            query["continue"] = following
        for uid, known_pod in list(known_pods.pods.items()):
            if uid not in listed and path in (_EVERYWHERE, _path(known_pod.ref.namespace)):
                known_pods.remove(uid, self._last_seen or now, deleted=False)
        self._versions[path] = json_text(document, "metadata", "resourceVersion") or ""
        return count, without - (len(known_pods.rejected) - rejected)

    def _watch(self, path: str, version: str) -> list[dict[str, object]] | None:
        """Return the events since a resource version; None if the server no longer has them."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._settings.watch_s),
        }
        try:
            events = self._server.get_lines(path, query, _events)
        except RequestError as problem:
            if problem.status != _GONE:
                raise
            return None
        failed = [event for event in events if json_text(event, "type") == "ERROR"]
        if any(json_number(event, "object", "code") == _GONE for event in failed):
            return None
        if failed:
            what = json_text(failed[0], "object", "message") or "unknown"
            raise RequestError(f"the watch failed: {what[:200]}", where=self._server.where)
        return events

    def _take(self, path: str, events: Iterable[object], now: datetime) -> tuple[int, int]:
        """Note the changes of a watch; return (pods read, those without GPUs)."""
        count = without = 0
        for event in events:
            document = json_value(event, "object")
            version = json_text(document, "metadata", "resourceVersion")
            kind = json_text(event, "type")
            if kind != "BOOKMARK":
                rejected = len(self._known.rejected)
                count += 1
                deleted = kind == "DELETED"
                moment = min(now, deletion_time(document, now)) if deleted else now
                pod = self._known.add(document, seen=moment)
                without += pod is None and len(self._known.rejected) == rejected
                if deleted and pod is not None:
                    self._known.remove(pod.ref.uid, moment, deleted=True)
            self._versions[path] = version or self._versions[path]
        return count, without

    def _look_up_owners(self) -> None:
        """Request the owners of changed pods that are not known, up to the last.

        Owners whose request failed are requested again, after the others, so that they do not keep
        those from their turn.
        """
        failed_before = self._failed
        awaited = self._failed | self._postponed
        self._failed, self._postponed = set(), set()
        failures: Counter[tuple[str, str]] = Counter()
        try:
            for uid in self._without_owner(awaited, failed_before):
                chain = self._look_up_chain(self._known.pods[uid], failures)
                if any(ref in awaited and ref in self._known.owners for ref in chain):
                    self._known.changed.add(uid)
        except RequestError:
            self._postponed |= awaited  # the next poll begins anew
            raise

    def _look_up_chain(self, pod: Pod, failures: Counter[tuple[str, str]]) -> list[ObjectRef]:
        """Request the unknown owners of a pod; return its owners. `failures`: by API and kind."""
        ref = self._next_owner(pod)
        while ref is not None:
            kind = (ref.api, ref.kind)
            if failures[kind] >= _FAILURES_OF_KIND:  # each may take until its timeout
                self._postponed.add(ref)
                break
            self._look_up(ref)
            failures[kind] += ref in self._failed
            ref = self._next_owner(pod)
        return owner_chain(pod, self._known.owners)

    def _without_owner(self, awaited: set[ObjectRef], failed: set[ObjectRef]) -> list[str]:
        """UIDs of pods that changed or have an awaited owner; those whose owner failed are last."""
        order: list[tuple[bool, str]] = []
        for uid in self._known.pods if awaited else self._known.changed:
            chain = owner_chain(self._known.pods[uid], self._known.owners)
            if uid in self._known.changed or not awaited.isdisjoint(chain):
                order.append((not failed.isdisjoint(chain), uid))
        return [uid for _, uid in sorted(order)]

    def _next_owner(self, pod: Pod) -> ObjectRef | None:
        """The last owner of a pod that is known by name, if it is still to be requested."""
        chain = owner_chain(pod, self._known.owners)
        if not chain:
            return None
        ref = chain[-1]
        done = (self._known.owners, self._unreadable, self._failed, self._postponed)
        return None if any(ref in refs for refs in done) else ref

    def _look_up(self, ref: ObjectRef) -> None:
        """Request an owner. Errors: RequestError if the server refuses our token."""
        path = owner_path(ref)
        try:
            if path is not None:
                answer = self._server.get(path)
                owner = read_owner(json_document(answer.content, self._server.where))
                self._known.owners[owner.ref] = owner
        except InputError as problem:
            status = problem.status if isinstance(problem, RequestError) else None
            if status == _UNAUTHORIZED:
                raise
            if status not in _UNREADABLE:
                self._failed.add(ref)
                self.outcome.unreachable[f"{self._server.where}{path}"] = problem.what
                return
        except BadRowError:
            pass  # no owner: its answer names nothing
        if ref not in self._known.owners:  # of its name there may be another one, too
            self._unreadable.add(ref)


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


_API = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,252})/v[a-z0-9]{1,20}", re.ASCII)
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}", re.ASCII)
_OBJECT = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,252})", re.ASCII)


def owner_path(ref: ObjectRef) -> str | None:
    """Return the address of an owner; its plural is that of its kind in small letters, as usual.

    References are written by users: none leads elsewhere, or to an object of the core, as secrets
    are.

    >>> owner_path(ObjectRef("batch/v1", "Job", "ml", "train", "u1"))
    '/apis/batch/v1/namespaces/ml/jobs/train'
    >>> owner_path(ObjectRef("v1", "Secret", "ml", "keys", "u1"))
    >>> owner_path(ObjectRef("batch/v1", "Job", "ml", "../secrets", "u1"))
    """
    names = (_OBJECT.fullmatch(ref.namespace), _OBJECT.fullmatch(ref.name))
    if not (_API.fullmatch(ref.api) and _KIND.fullmatch(ref.kind) and all(names)):
        return None
    return f"/apis/{ref.api}/namespaces/{ref.namespace}/{ref.kind.lower()}s/{ref.name}"


def _events(lines: Iterator[bytes]) -> list[dict[str, object]]:
    """Whole events of a watch; a connection may end within one."""
    events: list[dict[str, object]] = []
    for line in lines:
        try:
            events.append(msgspec.json.decode(line, type=dict[str, object]))
        except (msgspec.DecodeError, UnicodeDecodeError):
            break
    return events


def _message(body: bytes) -> str:
    """The message of a Status."""
    try:
        return json_text(msgspec.json.decode(body), "message") or ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def read_listing(
    content: bytes, where: str, cluster: SlurmCluster, *, user_labels: tuple[str, ...] = ()
) -> AccountingReading:
    """Return the workloads of a saved listing. Errors: InputError for another file."""
    document = json_document(content, where)
    if json_text(document, "kind") not in ("List", "PodList"):
        raise not_of("a listing of pods", where, _SAVE)
    pods = KnownPods(user_labels)
    for position, item in enumerate(json_objects(document, "items"), start=1):
        pods.add(item, place=position)
    reading = pods.reading(cluster)
    reading.rows_read = len(reading.jobs) + len(reading.rejected)
    return reading


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare saved listings; without any the server is read once."""
    add_files(parser, f"output of `{_SAVE}`", may_lack=True)


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield one chunk per listing; without files what the configured servers list now.

    Errors: InputError naming the file or the address.
    """
    settings = settings_in(configuration, NAME)
    if options.files:
        labels = cast("KubernetesSettings", settings[0]).user_labels
        listings = DocumentSource(NAME, SUFFIXES, partial(read_listing, user_labels=labels))
        yield from listings.read(options, configuration=configuration, now=now)
        return
    if not configuration.sources:
        raise UsageError("no listing and no server", do=f"name files: {_SAVE} > pods.json")
    for setting in settings:
        with closing(connect(setting, configuration=configuration)) as feed:
            yield feed.fetch(f"{setting.stream}-once:{now.isoformat()}", now=now)


rejected = DocumentSource(NAME, SUFFIXES, read_listing).rejected
