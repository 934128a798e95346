"""Finds the fastest configuration of each launch that a model's step makes, and writes a launch table for `serve --launch-table`.

Command line:

    python -m tuning --model DIR --out FILE [--device cuda|cpu] [--dense bf16|fp8|q4] [--ranks 1|2] [--seeds 3]

`--model` is a checkpoint folder; only as many of its first layers are loaded as show every kind of layer. `--dense` and `--ranks` are
those that will be served with: a table for others is refused by `serve`. With `--ranks 2` one device measures the share of rank 0.
On `--device cpu` no launch can be chosen, so the table is complete and empty.

FILE is written after every launch tuned, each time whole (renamed into place), with `"complete": false` until the last. A run that finds
such a file, made on the same device by the same kernels for the same options, goes on with it; any other file is made anew. `serve`
refuses a table that is not complete. The format is `launch_tables/schema.json`.

Progress is one line a launch. The last line is a JSON object: `{"table": FILE, "complete": true, "entries": 12, "changed": 5}`, or
`{"table": FILE, "complete": false, "cause": "..."}`. Exit status: 0 the table is complete; 2 a word of the command line is wrong; 3 the
model or the device cannot be used; 5 a kernel does not compile or run, the lines before the last are the compiler's own words.

A candidate counts only if its registers hold all it needs and its bits equal the default's on every seed, at the lowest and the highest
number of rows, in buffers poisoned with NaN. It wins if it is faster than the default by 2 % and by more than the spread of both.
"""
