"""Started by an owner: becomes its zygote."""

from headrace.hosting.zygote import main

if __name__ == "__main__":  # programs that a handler starts with multiprocessing import this module again
    main()
