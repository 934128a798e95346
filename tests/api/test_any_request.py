"""What the OpenAPI document allows, and what it does not, as Schemathesis makes it up: answered or refused, never a 5xx.

`SCHEMA_EXAMPLES` sets the examples of each operation; the default is for every run, some thousands are half an hour's worth.
"""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import hypothesis.errors
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.core.result import Ok

from fixtures.fronts import Front

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "25"))


def operations(front: Front) -> list[Any]:
    document = front.http.get("/openapi.json").json()
    generation = GenerationConfig(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    config = SchemathesisConfig(projects=ProjectsConfig(default=ProjectConfig(generation=generation)))
    schema = schemathesis.openapi.from_dict(document, config=config)
    return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


def asked(front: Front, operation: Any, mode: GenerationMode) -> int:
    """Requests made up for one operation, all answered or refused."""
    count = 0

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        nonlocal count
        count += 1
        reply = case.call(base_url=front.url, timeout=30)
        # A deadline that short may pass: the request asked for it.
        is_late = reply.status_code == 504 and reply.json()["error"]["code"] == "deadline_exceeded"
        assert reply.status_code < 500 or is_late, (operation.label, case.as_curl_command()[:2000], reply.text[:500])

    try:
        ask()
    except hypothesis.errors.Unsatisfiable:
        # An operation without parameters cannot be asked wrongly.
        assert mode is GenerationMode.NEGATIVE
    return count


@pytest.mark.timeout(3600)
def test_no_request_of_any_operation_ends_in_a_fault(front: Front) -> None:
    found = operations(front)
    assert len(found) > 12
    for operation in found:
        assert sum(asked(front, operation, mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)), operation.label
    assert front.http.get("/health").json()["status"] == "ok"
