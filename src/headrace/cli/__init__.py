"""The command line: ``headrace run``, ``retry``, ``quote``, ``diff``, ``doctor``, ``handlers`` and others.

::

    main.py       the commands; their options are dataclasses of options.py, with defaults of headrace.toml: option.py
      |- run.py        run, retry: a run, with display.py on the screen and record.py for programs
      |    '- prepare.py    options -> jobs.Job: the files, and what the model gets of them
      |- quote.py      quote, by pilots.py, and simulate: what a run will take
      |- diff.py       diff and report: what runs predicted and took
      |- doctor.py     doctor: what runs here; what a handler needs, by runtime/profiling
      '- catalogue.py  handlers: what there is, and what each needs
    handlers.py   --handler by name; recognition.py: by the model's file
    words.py      options as words of a command line, with those behind each --fallback
    console.py    errors as one line and an exit code, the log, Ctrl-C and SIGTERM
"""
