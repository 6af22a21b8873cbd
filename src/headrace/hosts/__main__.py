"""Entry point of the fork server, which its owner starts."""

from headrace.hosts.fork_server import main

if __name__ == "__main__":  # multiprocessing "spawn" children of a host import this module again
    main()
