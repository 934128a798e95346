"""A hyper-connection site by its published names."""

from lockstep.config.model import TextConfig
from lockstep.kernels.hyper_connection import Site, site
from lockstep.layers.params import Params


def load_site(params: Params, name: str, config: TextConfig) -> Site:
    """Site `hc_attn` or `hc_ffn` of the layer under `params`."""
    streams = config.hc_mult
    outputs = streams * (streams + 2)
    return site(
        params.float(f"{name}_fn", outputs, streams * config.hidden_size),
        params.float(f"{name}_scale", 3),
        params.float(f"{name}_base", outputs),
        config.hc_eps,
        config.rms_norm_eps,
        config.hc_sinkhorn_iters,
    )
