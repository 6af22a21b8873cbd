"""What becomes of a batch that fails: retry, smaller parts, a search for its bad elements, or giving up.

Pure: calls, clocks and sleeping are passed in. Steps, and so recovery, run in hosts as well as in worker processes.

::

    runtime/steps  (the call raised)     runtime/host_executor, host_transport  (the host was lost)
       |                                            |
       v                                            |
    recovery                                        |
       |--> retry     transient: try again          |
       v                                            v
    search     tries parts of a batch until the elements that raise, kill or hang stand alone
       '--> breaker   open: or only some elements

    concurrency    how many requests to an endpoint may be in flight, and how fast they may follow each other
       |--> latency          how many it answers side by side         |
       |--> quota            how many a second it accepts             |--> endpoint_board   what the processes of a
       '--> outages          whether it is down; how it is probed     |                     machine know together
    replies        what the error of a request says
    breaker        also what follows a load that fails   (for sessions, fork servers and the machine's clients)
    device         errors after which no call succeeds   (worker and host processes)
"""
