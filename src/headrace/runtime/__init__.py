"""Runs one transform's model: batching, failure handling, model placement and metrics meet here; adapters call this.

adapters (beam/, local/, jobs/)
    prepare.py       handler + options -> SessionSpec (spec.py), holding a Plan (plan.py: a parsed handler)
    open_worker.py   SessionSpec -> the worker of one thread
        |
        |- worker.py         Worker: the model is in this process
        '- placement.py      HostedWorker: the model is in a host process
        |
    bundle.py  ->  queues.py  ->  executor, one of; what fails goes to the bundle of a fallback's worker, if any
        LocalExecutor   ->  steps.py (operations.py)  ->  handler, here or on a second thread, where that is faster
        HostExecutor    ->  hosted_models.py  = messages.py =>  request_handler.py in the host: Worker and steps.py
        RemoteExecutor  ->  dispatcher.py (endpoint_calls.py, endpoints.py);
                            of an engine in a host host_transport.py  = messages.py =>  engines.py
    switching_worker.py, refresh.py   other models or arguments while the transform runs
Shared by the threads of a process:
    session.py        models, learnt batch sizes, circuit breakers
                      model_source.py: loaded models, and where else they may come from
                      prediction_cache.py: earlier predictions; usage_meter.py: the budget
    placement.py      for isolated or shared models: mapped weights (acquire.py), or a host
observers.py: events, metrics and samples; profiling.py: `headrace doctor`
"""
