"""One module a task. Each offers functions `(rng, split) -> Exchange`; `mixture` weighs them."""
