"""`GET /`: the status page, one static file that asks `/health` and the chat route like any other client. Knows no figure."""

import secrets
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

router = APIRouter(include_in_schema=False)
_HTML = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
_HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


@router.get("/")
async def page(request: Request) -> HTMLResponse:
    """Open to all: there is nothing in it. Nothing but its own style and script runs, nothing but this server is asked."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HTMLResponse(_HTML.replace("NONCE", nonce), headers=_HEADERS | {"Content-Security-Policy": policy})
