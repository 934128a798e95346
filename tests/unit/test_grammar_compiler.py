"""Grammars are compiled in forks that can be killed: what they die of is told, and nobody else notices."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Set

import pytest
import uvloop

from fixtures.processes import children
from fixtures.schemas import VOCABULARY
from fixtures.waiting import until
from grammars.compiler import CompilerFault, GrammarCompiler
from grammars.formats import choice_form, grammar_form, plain_json, regex_form
from grammars.protocol import Form, GrammarError

PROPERTIES = {f"p{at}": {"type": "string"} for at in range(300)}
SLOW: Form = plain_json({"type": "object", "properties": PROPERTIES, "minProperties": 150, "additionalProperties": False})
LARGE = regex_form("(" + "|".join(f"[a-{chr(98 + at)}]{{1,900}}" for at in range(24)) + "){1,900}")


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[asyncio.Runner, GrammarCompiler]]:
    """A worker takes seconds to start, so the tests that leave it alive have one together."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        compiler = GrammarCompiler(VOCABULARY, 60)
        yield runner, compiler
        runner.run(compiler.close())


Run = Callable[[Callable[[GrammarCompiler], Awaitable[None]]], None]


@pytest.fixture
def run(shared: tuple[asyncio.Runner, GrammarCompiler]) -> Run:
    runner, compiler = shared

    async def within(scenario: Callable[[GrammarCompiler], Awaitable[None]]) -> None:
        await scenario(compiler)

    return lambda scenario: runner.run(within(scenario))


async def refusal(compiler: GrammarCompiler, form: Form) -> str:
    with pytest.raises(GrammarError) as error:
        await compiler.compile(form)
    return str(error.value)


def workers() -> set[int]:
    return children(os.getpid(), "grammars.worker")


def the_worker(others: Set[int] = frozenset()) -> int:
    [worker] = workers() - others
    return worker


async def the_fork() -> int:
    for _ in range(1000):
        if found := children(the_worker()):
            return found.pop()
        await asyncio.sleep(0.01)
    raise AssertionError("no grammar is being compiled")


def test_a_compiled_grammar_is_kept_and_its_name_is_that_of_what_was_asked(run: Run):
    async def scenario(compiler: GrammarCompiler) -> None:
        first = await compiler.compile(choice_form(["yes", "no"]))
        digest, compiled = await compiler.compile(choice_form(["yes", "no"]))
        assert digest == first[0]
        assert compiled is first[1], "the very same, not one more"
        assert (await compiler.compile(choice_form(["no", "yes"])))[0] != first[0]

    run(scenario)


def test_a_grammar_that_is_none_is_refused_in_the_words_of_the_library(run: Run):
    async def scenario(compiler: GrammarCompiler) -> None:
        assert "parenthesis is not closed" in await refusal(compiler, regex_form("("))
        assert 'Rule "b" is not defined' in await refusal(compiler, grammar_form("root ::= b"))
        assert "Lookahead is not supported" in await refusal(compiler, regex_form("(?=a)b"))
        assert "no reply can begin" in await refusal(compiler, grammar_form('root ::= root "a"'))

    run(scenario)


@pytest.mark.parametrize(
    ("form", "limit_s", "memory_bytes", "words"),
    [(SLOW, 1, 2 << 30, ("too long",)), (LARGE, 30, 100 << 20, ("too much memory", "ended its compiler"))],
    ids=["time", "memory"],
)
def test_one_that_takes_too_much_is_ended_and_the_next_is_compiled(form: Form, limit_s: int, memory_bytes: int, words: tuple[str, ...]):
    async def scenario(compiler: GrammarCompiler) -> None:
        others = workers()
        told = await refusal(compiler, form)
        assert any(word in told for word in words), told
        worker = the_worker(others)
        await compiler.compile(regex_form("[a-z]+"))
        assert the_worker(others) == worker
        assert children(worker) == set()
        await compiler.close()

    asyncio.run(scenario(GrammarCompiler(VOCABULARY, limit_s, memory_bytes)))


def test_a_grammar_that_kills_its_compiler_ends_its_fork_only(run: Run):
    async def scenario(compiler: GrammarCompiler) -> None:
        await compiler.compile(regex_form("a"))
        worker, deadly = the_worker(), asyncio.create_task(refusal(compiler, SLOW))
        fork = await the_fork()
        beside = asyncio.create_task(compiler.compile(regex_form("b+")))
        os.kill(fork, signal.SIGSEGV)
        assert "ended its compiler (signal 11)" in await deadly
        await beside
        assert the_worker() == worker

    run(scenario)


def test_a_worker_that_ends_is_told_and_replaced(run: Run):
    async def scenario(compiler: GrammarCompiler) -> None:
        await compiler.compile(regex_form("a"))
        worker, asked = the_worker(), asyncio.create_task(compiler.compile(SLOW))
        fork = await the_fork()
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(CompilerFault, match="ended"):
            await asked
        os.kill(fork, signal.SIGKILL)
        await compiler.compile(regex_form("b"))
        assert the_worker() != worker

    run(scenario)


def test_a_worker_that_was_killed_while_nobody_asked_is_replaced_unnoticed(run: Run):
    async def scenario(compiler: GrammarCompiler) -> None:
        await compiler.compile(regex_form("c"))
        worker = the_worker()
        os.kill(worker, signal.SIGKILL)
        await until(lambda: worker not in children(os.getpid()))
        await compiler.compile(regex_form("d"))
        assert the_worker() != worker

    run(scenario)


def test_a_worker_that_does_not_answer_is_told_and_replaced(run: Run, monkeypatch: pytest.MonkeyPatch):
    async def scenario(compiler: GrammarCompiler) -> None:
        await compiler.compile(regex_form("e"))
        worker = the_worker()
        os.kill(worker, signal.SIGSTOP)
        monkeypatch.setattr("grammars.compiler._SLACK_S", -59.5)
        with pytest.raises(CompilerFault, match="does not answer"):
            await compiler.compile(regex_form("f"))
        monkeypatch.undo()
        await compiler.compile(regex_form("f"))
        assert the_worker() != worker

    run(scenario)


def test_whoever_leaves_while_a_worker_starts_leaves_none_behind(run: Run):
    async def scenario(_: GrammarCompiler) -> None:
        others, compiler = workers(), GrammarCompiler(VOCABULARY)
        asked = asyncio.create_task(compiler.compile(regex_form("g")))
        await until(lambda: workers() != others)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert workers() == others

    run(scenario)


def test_a_worker_ends_with_whoever_started_it():
    async def scenario(compiler: GrammarCompiler) -> None:
        others = workers()
        await compiler.compile(regex_form("a"))
        worker = the_worker(others)
        await compiler.close()
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)

    asyncio.run(scenario(GrammarCompiler(VOCABULARY)))
