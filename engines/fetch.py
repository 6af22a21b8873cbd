"""Fetches what engines need, once, into ``.engines``: Flink's and Spark's from PyPI and Maven's central repository."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from fat_jar import join

FLINK = "1.19.0"
_FLINK_SHA256 = "bb3115c1c63702f95c3f89d5d952e9d98e26fd35b980a265d139790a6ea2c2a2"
JOB_SERVER = "2.62.0"
"""The latest job server for Flink 1.19 that the registry has; it runs pipelines of Python's Beam 2.77, too."""
SPARK = "3.5.0"
"""The one with which Beam's job server for Spark is built."""
_DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"
_OLDEST_JAVA = 11
_JOB_SERVER_JAR = "job-server.jar"
_PAUSES_SECS = (5.0, 20.0, 60.0)
"""Between tries of what comes over the network."""
_PATIENCE = {"UV_HTTP_TIMEOUT": "300", "PIP_DEFAULT_TIMEOUT": "300"}
"""Seconds for which a server may be silent: jars of 100 MB and more make proxies think."""

_ON_FLINK = (f"org.apache.beam:beam-runners-flink-1.19:{JOB_SERVER}",)
_ON_SPARK = (
    "org.slf4j:slf4j-api:2.0.7",  # that of Spark, or it says nothing
    f"org.apache.beam:beam-runners-spark-3:{JOB_SERVER}",
    f"org.apache.spark:spark-streaming_2.12:{SPARK}",
)
_FOR_SQL = (
    f"org.apache.beam:beam-sdks-java-extensions-sql:{JOB_SERVER}",
    f"org.apache.beam:beam-sdks-java-expansion-service:{JOB_SERVER}",
    "com.github.jbellis:jamm:0.4.0",  # Beam's worker needs it, and does not say so to Maven
)
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId>
  <artifactId>job-server</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{}
  </dependencies>
</project>
"""
_DEPENDENCY = """    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""


class EngineError(Exception):
    """Something is missing or has failed; the message says what to do."""


def java() -> str:
    """Java's program.

    Raises:
        EngineError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise EngineError(
            f"Flink and Spark need Java {_OLDEST_JAVA} or 17, and there is no `java` in JAVA_HOME or PATH; "
            "install one, for example: apt-get install openjdk-17-jre-headless"
        )
    return found


def flink_jars(folder: Path) -> str:
    """The class path of Flink itself; fetched (235 MB) if it is not in the folder yet.

    Raises:
        EngineError: it cannot be fetched.
    """
    home = folder.resolve() / f"flink-{FLINK}"
    if not home.exists():
        with made_at_once(home) as new:
            requirements = new.parent / "requirements.txt"
            requirements.write_text(f"apache-flink-libraries=={FLINK} --hash=sha256:{_FLINK_SHA256}\n")
            run_command([*_installer(), "--no-deps", "--require-hashes", "--target", str(new), "-r", str(requirements)])
    return os.pathsep.join(map(str, sorted((home / "pyflink" / "lib").glob("*.jar"))))


def job_server_jar(folder: Path) -> str:
    """Beam's job server for Flink in one jar; fetched (150 MB) if it is not there yet.

    Raises:
        EngineError: it cannot be fetched.
    """
    home = folder.resolve() / f"job-server-{JOB_SERVER}"
    if not home.exists():
        with made_at_once(home) as new:
            join(_jars(_ON_FLINK, new.parent), new / _JOB_SERVER_JAR)
    return str(home / _JOB_SERVER_JAR)


def spark_home(folder: Path) -> Path:
    """A SPARK_HOME whose ``jars`` are Spark's and Beam's job server for it; fetched (270 MB) if it is not there yet.

    Raises:
        EngineError: it cannot be fetched.
    """
    return _home_of_jars(folder.resolve() / f"spark-{SPARK}-{JOB_SERVER}", _ON_SPARK)


def sql_home(folder: Path) -> Path:
    """A folder whose ``jars`` are Beam SQL and an expansion service; fetched (210 MB) if it is not there yet.

    Raises:
        EngineError: it cannot be fetched.
    """
    return _home_of_jars(folder.resolve() / f"sql-{JOB_SERVER}", _FOR_SQL)


def java_program(project: Path, folder: Path) -> str:
    """The class path of a Maven project; compiled, and its jars fetched (80 MB), if its sources have changed.

    Raises:
        EngineError: it cannot be compiled.
    """
    sources = sorted(path for path in project.rglob("*") if path.suffix in (".java", ".xml"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:10]
    home = folder.resolve() / f"java-{digest}"
    if not home.exists():
        with made_at_once(home) as new:
            for source in sources:
                copy = new / source.relative_to(project)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)
            _build(new / "pom.xml", "compile", new / "class-path.txt")
    return os.pathsep.join([str(home / "target" / "classes"), (home / "class-path.txt").read_text().strip()])


def _home_of_jars(home: Path, artifacts: Iterable[str]) -> Path:
    if not home.exists():
        with made_at_once(home) as new:
            (new / "jars").mkdir()
            for jar in _jars(artifacts, new.parent):
                shutil.copy(jar, new / "jars")
    return home


def _jars(artifacts: Iterable[str], scratch: Path) -> list[Path]:
    """Those artifacts and all that they need, in Maven's own folder."""
    pom, class_path = scratch / "pom.xml", scratch / "class-path.txt"
    pom.write_text(_POM.format("\n".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)))
    _build(pom, "validate", class_path)
    return [Path(jar) for jar in class_path.read_text().strip().split(os.pathsep)]


def _build(pom: Path, phase: str, class_path: Path) -> None:
    """Builds a project up to a phase, and writes the jars that it needs into a file."""
    maven = shutil.which("mvn")
    if maven is None:
        raise EngineError(
            "Beam's jars come from Maven's repository, and there is no `mvn` in PATH; "
            "install it, for example: apt-get install maven"
        )
    build = [phase, f"{_DEPENDENCY_PLUGIN}:build-classpath", f"-Dmdep.outputFile={class_path}"]
    always = ["--batch-mode", "--update-snapshots", "--strict-checksums"]  # what failed before is tried again
    run_command([maven, *always, "--quiet", "--file", str(pom), *build])


@contextlib.contextmanager
def made_at_once(home: Path):
    """A folder to fill; it gets its name only when that is done, so that what was interrupted is begun anew."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f"{home.name}-") as scratch:
        new = Path(scratch) / home.name
        new.mkdir()
        yield new
        new.rename(home)


def _installer() -> list[str]:
    """The command that installs from PyPI: uv if there is one beside this Python or in PATH, else pip."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    uv = shutil.which("uv", path=beside)
    return [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]


def run_command(command: list[str], **variables: str) -> None:
    """Runs it, with these variables in its environment.

    Raises:
        EngineError: it has failed.
    """
    print("fetching:", " ".join(command[:4]), "...", file=sys.stderr)
    for pause in (*_PAUSES_SECS, None):
        environment = {**os.environ, **_PATIENCE, **variables}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment
        )
        if not done.returncode:
            return
        told = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        failure = f"{' '.join(command)} has failed (exit code {done.returncode}):\n{told}"
        if pause is None:
            raise EngineError(failure)
        print(f"{failure}\nanother try in {pause:g} s", file=sys.stderr)
        time.sleep(pause)
