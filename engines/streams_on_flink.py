"""Streams on a Flink cluster: ``python engines/streams_on_flink.py``; see README.md beside this file."""

from __future__ import annotations

import argparse
import sys
import urllib.request
from typing import Any

import stream
from fetch import EngineError
from flink import Cluster, lose, up
from job_server import worker_processes
from play import ACTS, Engine, Play, run

CHECKPOINT_MS = 1000
_NEVER_IDLE = f"--shutdown_sources_after_idle_ms={2**63 - 1}"
"""Without checkpoints the job server ends sources that are idle, and all that is to come comes at once."""
_RUNNING = ("CREATED", "RUNNING", "RESTARTING", "FAILING", "INITIALIZING")


def engine(cluster: Cluster, kind: str) -> Engine:
    """The cluster, for a stream of that kind.

    Where there is a side input there are no checkpoints, in which Beam's job server cannot save it. Elsewhere bundles
    are finished before a checkpoint: what one has made that a checkpoint has interrupted would wait for the next
    bundle, of a source that has one element for ever.
    """
    saving = (f"--checkpointing_interval={CHECKPOINT_MS}", "--finish_bundle_before_checkpointing")
    options = (
        "--streaming",
        worker_processes(1),  # a stream has the same ones from its beginning to its end
        *((_NEVER_IDLE,) if kind in {"arguments", "refresh"} else saving),
        *("--number_of_execution_retries=60", "--execution_retry_delay=1000"),  # until there are slots again
    )
    return Engine(
        "Flink",
        lambda **variables: [*cluster.pipeline_options(**variables), *options],
        lambda _: cancel(cluster),
        "machine",
    )


def cancel(cluster: Cluster) -> None:
    """Ends all jobs of the cluster; what the job server is asked for does not reach a job for certain."""
    for job in running(cluster):
        url = f"http://127.0.0.1:{cluster.ports['rest']}/jobs/{job}?mode=cancel"
        with urllib.request.urlopen(urllib.request.Request(url, method="PATCH"), timeout=5):
            pass


def running(cluster: Cluster) -> list[str]:
    """The ids of its jobs that are not over."""
    return [job["jid"] for job in cluster.ask("jobs/overview")["jobs"] if job["state"] in _RUNNING]


def restart(play: Play, cluster: Cluster) -> None:
    """A task manager is killed while elements wait in state that a checkpoint has; the job goes on from that one."""
    (job,) = running(cluster)

    def checkpoints() -> dict[str, Any]:
        return dict(cluster.ask(f"jobs/{job}/checkpoints"))

    def out() -> set[int]:
        return play.records.numbers("said") | play.records.numbers("letter")

    def saved() -> set[int]:
        """Numbers that were sent before the last checkpoint and have not come out."""
        last = checkpoints()["latest"]["completed"]
        if last is None:
            return set()
        sent = {line["number"] for line in play.records.of("sent") if line["when"] < last["trigger_timestamp"] / 1000}
        return sent - out()

    play.allow(stream.ONWARD)
    waiting = play.wait("elements that wait in a checkpoint", saved)
    before = play.count()
    lose(cluster, "tm2")
    play.wait("a restart from a checkpoint", lambda: bool(checkpoints()["counts"]["restored"]))
    play.wait("predictions after the restart", lambda: play.count() > before + len(waiting))
    sent = play.records.numbers("sent")
    play.wait("what was sent after the checkpoint, once more", lambda: sent <= out())
    play.facts.append(f"{len(waiting)} elements waited in the last checkpoint when tm2 was killed")


def act(kind: str, cluster: Cluster) -> Any:
    """What directs a stream of that kind."""
    return ACTS[kind] if kind in ACTS else lambda play: restart(play, cluster)


KINDS = (*ACTS, "restart")


def main() -> None:
    """Runs one kind after the other; exits with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="kind", default=KINDS, help=f"of {', '.join(KINDS)}")
    parser.add_argument("--name", default="flink", help="of the cluster; it is started if it does not run")
    words = parser.parse_args()
    if unknown := set(words.kinds) - set(KINDS):
        parser.error(f"there is no {unknown.pop()!r}, but {', '.join(KINDS)}")
    bad = 0
    try:
        for kind in words.kinds:
            cluster = up(words.name)
            report = run(kind, engine(cluster, kind), act(kind, cluster))
            print(f"\n{report}\n", flush=True)
            bad += bool(report.problems)
    except EngineError as error:
        sys.exit(f"{words.name}: {error}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
