"""Layers of the model: parameters by their published names, and a forward that calls kernels. Knows no cache and no order of layers."""
