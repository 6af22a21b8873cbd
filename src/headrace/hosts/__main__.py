"""Started by an owner: becomes its fork server."""

from headrace.hosts.fork_server import main

if __name__ == "__main__":  # programs that a handler starts with multiprocessing import this module again
    main()
