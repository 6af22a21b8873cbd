"""Runs models in hosts: processes that may crash, hang or be killed while their clients continue.

client: a worker process, or the manager          fork server process                host process (one per copy)

client.ModelHosts       picks and replaces hosts
  connection.HostConnection ------------------------- requests and responses ------------> host.serve
  provider.HostProvider  is one of:                                                          RequestHandler
    machine.lease.Lease  hosts of the manager                                                (runtime.HostExecutor)
    fork_server_client.ForkServerClient ---------> fork_server.ForkServer --- fork --------> (imports, weights and
      starter.py         starts it (__main__.py)     imports, maps weights,                    thread_budget inherited)
                                                     forks and reaps
output.OutputReader  <------------------------------ redirect.py: prints and log records of both

environment.py    what the fork server takes over from its owner: path, directory, variables
gpus.py           which GPU each copy sees
system.py         system calls: parent-death signals, subreaper, pidfd
orphans.py        kills what killed owners have left behind, before the first fork server of a process
"""
