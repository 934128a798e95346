"""One folder an operation: the public call, the plain torch truth (`ref.py`), fast forms beside it: `host.py` on the CPU, a module with its
`.cu` source on a CUDA device.

A function of these has name, arguments and result of the public call; what is said of it there holds here too.
"""
