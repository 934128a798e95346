"""Executes step plans on the model. Owns tensors; decides nothing about who runs."""
