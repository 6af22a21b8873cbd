"""Runs models in hosts: processes that may crash, hang or be killed while their clients go on.

client: worker process or manager           fork server (per session or model)  host (one per copy of the model)

client.ModelHosts
  connection.HostConnection <-- ipc.channel.Link: frames; progress page ----------> host.serve
      |                                                                             |
  provider.HostProvider, one of:                                                 host.RequestHandler, such as
    machine/lease, for shared hosts                                              runtime/request_handler: in turn
    fork_server_client -------------------> fork_server ---------- fork -------> runtime/engines: side_by_side
      SPARE: one that imports ahead           preloads, forks, reaps             (they inherit modules and weights)
output.OutputReader <---------------------- output.redirect_output <------------ prints and log records

environment.py     what hosts take over from their owner: search path, directory, variables, a model; GPUs and cores
system.py          system calls: parent-death signals, subreaper, pidfd; finds and kills what killed owners left behind
"""
