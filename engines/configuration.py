"""Flink's configuration, and the commands that start a cluster's processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from job_server import PORTS

if TYPE_CHECKING:
    from flink import Cluster

TASK_MANAGERS = ("tm1", "tm2")
SLOTS = 2
_UTIL = "util util.concurrent util.concurrent.atomic util.concurrent.locks"
_OPENED = f"lang lang.invoke lang.reflect net io nio text time {_UTIL}"
FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Of Java: what lives for minutes had better start fast than run fast."""
JAVA_OPTIONS = (
    *FAST_START,
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED.split()),
)
"""With which Flink runs on Java 17, as in its default configuration, and Spark, too."""

LOGGING = """rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n
"""


def settings(cluster: Cluster) -> Iterator[tuple[str, Any]]:
    """Flink's configuration. Its scripts, which we do not have, would compute the sizes of memory."""
    here = cluster.address("jobmanager")
    everywhere = "0.0.0.0" if cluster.network else here  # it calls itself localhost, too; what is there is all ours
    yield from (("jobmanager.rpc.address", here), ("jobmanager.bind-host", everywhere))
    yield from (("jobmanager.rpc.port", cluster.ports["rpc"]), ("jobmanager.memory.process.size", "1g"))
    yield from (("rest.address", here), ("rest.bind-address", here))
    yield from (("rest.port", cluster.ports["rest"]), ("rest.bind-port", cluster.ports["rest"]))
    yield from (("taskmanager.numberOfTaskSlots", SLOTS), ("taskmanager.cpu.cores", float(SLOTS)))
    sizes = {"framework.heap": 128, "task.heap": 384, "framework.off-heap": 128, "task.off-heap": 64, "managed": 128}
    yield from ((f"taskmanager.memory.{kind}.size", f"{size}m") for kind, size in sizes.items())
    yield from (("taskmanager.memory.network.min", "256m"), ("taskmanager.memory.network.max", "256m"))
    yield from (("taskmanager.memory.jvm-metaspace.size", "256m"), ("taskmanager.memory.jvm-overhead.min", "192m"))
    yield from (("taskmanager.memory.jvm-overhead.max", "192m"), ("io.tmp.dirs", f"{cluster.scratch}/tmp"))
    yield from (("restart-strategy.type", "fixed-delay"), ("restart-strategy.fixed-delay.attempts", 3))
    yield from (("restart-strategy.fixed-delay.delay", "1 s"), ("heartbeat.timeout", 60000))
    yield from (("heartbeat.interval", 3000), ("state.checkpoints.dir", f"file://{cluster.scratch}/checkpoints"))
    yield ("cluster.registration.error-delay", 500)  # of a task manager that was faster than its job manager


def commands(cluster: Cluster, program: str, flink: str, job_server: str) -> dict[str, list[str]]:
    """What starts each process: ``program`` is Java's, ``flink`` a class path, ``job_server`` a jar."""
    configuration = f"{cluster.scratch}/conf"
    options = [f"-Dlog4j.configurationFile=file:{configuration}/log4j.properties", *JAVA_OPTIONS]
    options.append(f"-Djava.io.tmpdir={cluster.scratch}/tmp")
    of_flink = "org.apache.flink.runtime"
    start_job_manager = f"{of_flink}.entrypoint.StandaloneSessionClusterEntrypoint"
    start_task_manager = f"{of_flink}.taskexecutor.TaskManagerRunner"
    configured = ["--configDir", configuration]
    task_manager = [program, "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:MaxMetaspaceSize=256m", *options]
    logging = [jar for jar in flink.split(os.pathsep) if Path(jar).name.startswith("log4j")]
    here = cluster.address("jobserver")
    ports = [f"--{use}-port={cluster.ports[use]}" for use in PORTS]
    return {
        "jobmanager": [program, "-Xmx512m", *options, "-cp", flink, start_job_manager, *configured],
        **{
            role: [
                *(*task_manager, "-cp", flink, start_task_manager, *configured),
                *(f"-Dtaskmanager.{key}={cluster.address(role)}" for key in ("host", "bind-host")),
                f"-Dtaskmanager.resource-id={role}",
            ]
            for role in TASK_MANAGERS
        },
        "jobserver": [
            *(program, "-Xmx512m", *options, "-cp", os.pathsep.join([*logging, job_server])),
            *("org.apache.beam.runners.flink.FlinkJobServerDriver", f"--job-host={here}", *ports),
            *(f"--flink-master={here}:{cluster.ports['rest']}", f"--artifacts-dir={cluster.scratch}/artifacts"),
        ],
    }
