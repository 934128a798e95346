"""One folder an operation: the public call, the plain torch truth (`ref.py`), the fast path beside it."""
