"""`include` of the Responses API: what clients ask for by habit is taken, what cannot be given is refused by name."""

from __future__ import annotations

import pytest

from fixtures.fronts import Front


@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"], ["file_search_call.results", "message.input_image.image_url"]])
def test_known_words_of_include_are_taken(front: Front, include: list[str]) -> None:
    answer = front.http.post("/v1/responses", json={"input": "hi", "include": include, "max_output_tokens": 4})
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "response"


def test_an_include_that_cannot_be_given_is_refused_by_name(front: Front) -> None:
    answer = front.http.post("/v1/responses", json={"input": "hi", "include": ["message.output_text.logprobs"]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "include"
