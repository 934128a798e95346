"""What the OpenAPI document allows, and what it does not, as Schemathesis makes it up: answered or refused, never a 5xx.

`SCHEMA_EXAMPLES` sets the examples of each operation; the default is for every run, some thousands are half an hour's worth.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import hypothesis
import hypothesis.errors
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.core.result import Ok

from api.test_faults import BODIES
from fixtures.fronts import Front

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "25"))


def operations(front: Front) -> list[Any]:
    document = front.http.get("/openapi.json").json()
    generation = GenerationConfig(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    config = SchemathesisConfig(projects=ProjectsConfig(default=ProjectConfig(generation=generation)))
    schema = schemathesis.openapi.from_dict(document, config=config)
    return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


def asked(front: Front, operation: Any, mode: GenerationMode) -> list[int]:
    """Statuses of requests made up for one operation, all answered or refused."""
    found: list[int] = []

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), chance=st.randoms())
    def ask(case: Any, chance: Random) -> None:
        if mode is GenerationMode.POSITIVE and operation.path in BODIES and chance.random() < 0.6:
            # One of many made-up fields is nearly always refused. A few beside what is served go all the way.
            served = BODIES[operation.path]
            more = [name for name in case.body if name.isidentifier() and name not in served]
            case.body = served | {name: case.body[name] for name in chance.sample(more, min(3, len(more)))}
        reply = case.call(base_url=front.url, timeout=30)
        found.append(reply.status_code)
        # A deadline that short may pass: the request asked for it.
        is_late = reply.status_code == 504 and reply.json()["error"]["code"] == "deadline_exceeded"
        assert reply.status_code < 500 or is_late, (operation.label, case.as_curl_command()[:2000], reply.text[:500])

    try:
        ask()
    except hypothesis.errors.Unsatisfiable:
        # An operation without parameters cannot be asked wrongly.
        assert mode is GenerationMode.NEGATIVE
    return found


@pytest.mark.timeout(3600)
def test_no_request_of_any_operation_ends_in_a_fault(front: Front) -> None:
    found = operations(front)
    assert len(found) > 12
    for operation in found:
        rightly, wrongly = (asked(front, operation, mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
        assert rightly or wrongly, operation.label
        assert operation.path not in BODIES or 200 in rightly, operation.label
    assert front.http.get("/health").json()["status"] == "ok"
