"""What the fields of a request mean for its reply's grammar: compiled before anything is promised, refused with a status of its own."""

from functools import partial

from starlette.requests import Request

from grammars.calls import CallTags, calls_form, free_calls_form
from grammars.compiler import CompilerBusy, CompilerFault
from grammars.formats import either
from grammars.protocol import Form, GrammarError
from lockstep.core.types import Grammar
from lockstep.server.body import aside
from lockstep.server.deployment import Deployment, deployment
from lockstep.server.errors import bad_request, failed, overloaded
from lockstep.server.outputform import FIELDS, asked_form
from lockstep.server.schema import GenerationBody, ToolsBody
from lockstep.text.tools import Tag

INVALID_GRAMMAR = "invalid_grammar"


async def reply_grammar(request: Request, body: GenerationBody, in_reasoning: bool = False) -> Grammar | None:
    """The grammar that `body` asks for, behind the reasoning if the reply begins with one; None for a reply of any form.

    Raises ApiError: 400 for a grammar that cannot be used, 429 if too many wait to be compiled, 500 if the compiler is out of order."""
    site, param = deployment(request), "response_format"
    try:
        asked = asked_form({name: getattr(body, name) for name in FIELDS})
        form, param = asked or (None, "tools")
        if isinstance(body, ToolsBody):
            # That field is about texts, and beside a forced call there is none.
            form = None if body.forced_tool is not None and param == "response_format" else form
            form = await aside(request, partial(_with_calls, site, body, form))
        if form is None:
            return None
        _check_company(body, param)
        digest, data = await site.grammars.compile(form)
    except GrammarError as error:
        raise bad_request(f"{error}.", param, INVALID_GRAMMAR) from None
    except CompilerBusy as error:
        raise overloaded(f"{error}.", 0) from None
    except CompilerFault as error:
        raise failed(f"{error}.") from None
    return Grammar(digest, data, site.tokenizer.think_close if in_reasoning else -1)


def _with_calls(site: Deployment, body: ToolsBody, form: Form | None) -> Form | None:
    """Calls that are forced, allowed beside `form`, or of a tool whose arguments are to follow its schema whenever it is called."""
    forced, names = body.forced_tool, [tool["function"]["name"] for tool in body.offered_tools]
    if (forced is not None and forced not in ("", *names)) or (forced == "" and not names):
        raise bad_request(
            f"`tool_choice` forces a call of {(forced or 'a tool')[:64]}, `tools` offers {len(names)}; needed: a tool of the list.",
            "tool_choice",
        )
    is_strict = any(tool["function"].get("strict") is True for tool in body.offered_tools)
    if not names or (forced is None and form is None and not is_strict):
        return form
    if forced is not None and form is not None:
        raise GrammarError("`tool_choice` forces a call, which cannot be a reply of another form; needed: one of the two")
    tags = CallTags(*(site.tokenizer.added[tag.value] for tag in Tag))
    many = body.parallel_tool_calls is not False and not forced
    if forced is None and form is None:
        return free_calls_form(body.offered_tools, tags, many)
    calls = calls_form(body.offered_tools, tags, many, forced or None)
    return calls if form is None else either([calls, form])


def _check_company(body: GenerationBody, param: str) -> None:
    """A grammar decides where a reply ends; what keeps it from ending contradicts it."""
    for name in ("ignore_eos", "min_tokens"):
        if getattr(body, name):
            raise bad_request(f"`{name}` keeps a reply from ending where `{param}` has it end; leave one of them out.", name)
