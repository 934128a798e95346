"""The list of models tells what a client has to know before it asks."""

from __future__ import annotations

from fixtures.fronts import Front


def test_the_window_is_published_with_the_model(front: Front) -> None:
    (model,) = front.http.get("/v1/models").json()["data"]
    assert model["max_model_len"] == front.http.get("/health").json()["context_length"] == 4096
