"""lockstep: an exact inference engine for GLM-5.3-Flash (glm5_next)."""

__version__ = "0.1.0"
