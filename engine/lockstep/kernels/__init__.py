"""One folder an operation: the public call, the plain torch truth (`ref.py`), the fast path beside it (`host.py` on the CPU).

A function of these has name, arguments and result of the public call; what is said of it there holds here too.
"""
