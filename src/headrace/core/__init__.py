"""The contract and the vocabulary of the project: what every other room may import. Standard library only.

handler.py     ModelHandler: what a handler's author implements (keyed.py: elements with keys; remote.py: endpoints;
               engine.py: engines that take requests one by one)
answer.py      SKIP, and the check that an answer is one prediction for each example
result.py      PredictionResult for users; Predictions, Skipped and Failure between rooms; DeadLetter
config.py      BatchingConfig, PlacementConfig, RetryConfig
errors.py      the error tree
events.py      facts for observers (metrics, progress)
clock.py       time as a parameter
model_cache.py a cache of models, within a limit; registry.py: objects that the users of a process share
Helpers:  arrays.py (protocol of array plug-ins), conversion.py (rows and columns <-> model calls), files.py (open
          URIs), sqlite_files.py (of several processes), transferable.py (text in place of what cannot be
          pickled, or for a reader), spelling.py (names that users mistype; of handlers)

Everything here runs in every process: workers, hosts, the manager. Nothing here starts one.
"""
