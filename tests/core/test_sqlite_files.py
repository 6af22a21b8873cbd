"""Files of SQLite that several users of a process, and other processes, have open at once."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from contextlib import closing

from headrace.core.sqlite_files import create_for_owner, log_ahead

OTHER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("INSERT INTO t VALUES ('of another process')")
database.commit()
database.close()
"""


def test_file_is_for_its_owner(tmp_path):
    path = tmp_path / "file.db"
    create_for_owner(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_file_that_is_created_again_keeps_what_is_written_meanwhile(tmp_path):
    path = str(tmp_path / "file.db")
    create_for_owner(path)
    with closing(sqlite3.connect(path)) as database:
        log_ahead(database, 60)
        database.execute("CREATE TABLE t (a)")
        database.commit()
        create_for_owner(path)
        subprocess.run([sys.executable, "-c", OTHER, path], check=True, timeout=60)
        database.execute("INSERT INTO t VALUES ('mine')")
        database.commit()
        with closing(sqlite3.connect(path)) as again:  # had the other process removed the log, it would see one
            assert len(again.execute("SELECT a FROM t").fetchall()) == 2
