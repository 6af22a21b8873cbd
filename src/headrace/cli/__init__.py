"""The command line: ``headrace run``, ``retry``, ``doctor`` and ``handlers``.

::

    main.py       the commands; each one's options are a dataclass of options.py, with defaults from settings.py
      |- run.py        run, retry: options -> jobs.Job; columns.py, resume.py, progress.py, stopwatch.py, summary.py;
      |                hints.py: what may be wrong if nothing was predicted; fallbacks.py: --fallback, more than once
      |- doctor.py     doctor: runtime/profiling -> findings.py, the report
      '- handlers.py   handlers, and --handler by name; catalogue.py: what there is and what each needs
    errors.py     an exception as one line and an exit code; signals.py: Ctrl-C and SIGTERM
"""
