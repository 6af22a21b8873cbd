"""One copy of each model for all of a user's processes on a machine, kept by a manager process; one limit for requests.

::

    worker process (any number)                 manager process (one per user, Python and Headrace version)

    runtime/placement                           manager        accepts clients
         |                                         v
         |                                      model_table    leases, who loads, lingering, eviction
         |                                         |--> models/admission    may this model be loaded now?
         v               messages                  v
       lease <----------- Unix socket ---------> shared_model   one model: its weights file, its hosts
         |                                         |
         v                                         v
    discovery    finds the manager's endpoint   hosts/         fork server and hosts: children of the manager,
                 in the runtime directory,                     with a channel to each client that joins them
                 elects who launches it

    status       in any process: reads managers, hosts and leftovers for ``headrace doctor``, and cleans up

    shared_file  in worker processes, without a manager: an endpoint's limit, a budget, and who waits for memory, each
                 in a file of the runtime directory, gone with its last user

A client holds its lease for as long as its connection to the manager is open.
"""
