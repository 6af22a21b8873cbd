"""Which endpoints in a runtime directory have managers, and which are leftovers."""

from __future__ import annotations

from headrace.machine.discovery import find, is_free, manager_names


def answers(directory, name):
    connection = find(directory, name)
    return connection is not None and connection.close() is None


def running_managers(directory):
    return [name for name in manager_names(directory) if answers(directory, name)]


def stale_endpoints(directory):
    return [name for name in manager_names(directory) if not answers(directory, name) and is_free(directory, name)]
