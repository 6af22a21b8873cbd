"""The command line: ``headrace run``, ``retry``, ``doctor``, ``handlers`` and ``migrate``.

::

    main.py       the commands; their options are dataclasses of options.py, with defaults of headrace.toml: option.py
      |- run.py        run, retry: a run with its display, progress.py, and its end, summary.py and record.py
      |    '- prepare.py    options -> jobs.Job; inputs.py: the files, and what the model gets of them
      |- doctor.py     doctor: what runs here; what a handler needs, by runtime/profiling
      '- catalogue.py  handlers: what there is, and what each needs
    handlers.py   --handler by name; recognition.py: by the model's file; fallbacks.py: --fallback, more than once
    console.py    errors as one line and an exit code, the log, Ctrl-C and SIGTERM
"""
