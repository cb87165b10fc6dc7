"""The guard's own pages: sign-in, sign-out, and continuing after a link from another site."""

import secrets

from starlette.responses import HTMLResponse

LOGOUT = "/logout"
SIGN_OUT = (
    f'<a href="{LOGOUT}" style="position:fixed;left:0;bottom:0;padding:2px 8px;font:12px system-ui;'
    'color:#8a92a1;z-index:10">Sign out</a>'
)
"""Sign-out link on every page of Dagster's."""
_STYLE = "body{font:16px system-ui;margin:15vh auto;max-width:26rem}input,button{font:inherit;padding:.4rem}"

_LOGIN = """\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Pulse: sign in</title>
<style nonce="{nonce}">{style}</style></head><body>
<h1>Pulse control room</h1>
<form><p><label>Token <input name="token" type="password" autocomplete="current-password" autofocus></label>
<button>Sign in</button></p><p role="alert"></p></form>
<p><code>pulse up</code> and <code>pulse status</code> print an address that signs in.</p>
<script nonce="{nonce}">
const form = document.querySelector("form"), alert = document.querySelector("[role=alert]");
async function signIn(token) {{
  const answer = await fetch("/login", {{method: "POST", body: JSON.stringify({{token}}),
    headers: {{"Content-Type": "application/json"}}}});
  if (answer.ok) location.replace(location.pathname === "/login" ? "/" : location.href);
  else alert.textContent = (await answer.json()).error;
}}
form.addEventListener("submit", event => {{ event.preventDefault(); signIn(form.token.value.trim()); }});
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {{ history.replaceState(null, "", location.pathname); signIn(given); }}
</script></body></html>
"""

_LOGOUT = """\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Pulse: sign out</title>
<style nonce="{nonce}">{style}</style></head><body>
<h1>Pulse control room</h1>
<form><p><button autofocus>Sign out</button> <a href="/">Stay</a></p></form>
<p>This browser forgets who you are. Whom a proxy signs in, it signs out.</p>
<script nonce="{nonce}">
document.querySelector("form").addEventListener("submit", async event => {{
  event.preventDefault();
  const answer = await fetch(location.pathname, {{method: "POST", body: "{{}}",
    headers: {{"Content-Type": "application/json"}}}});
  if (answer.ok) location.replace("/");
}});
</script></body></html>
"""

_GO_ON = """\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Pulse</title>
<meta http-equiv="refresh" content="0"></head><body><a href="">Go on to the control room</a></body></html>
"""


def login() -> HTMLResponse:
    """Sign-in form; also reads the token from the URL fragment, which reaches no server and no log."""
    return _page(_LOGIN, status=401)


def logout() -> HTMLResponse:
    """Confirmation of signing out."""
    return _page(_LOGOUT, status=200)


def _page(template: str, status: int) -> HTMLResponse:
    """Page that may run only its own script."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    page = template.format(nonce=nonce, style=_STYLE)
    return HTMLResponse(page, status_code=status, headers={"Content-Security-Policy": policy})


def go_on() -> HTMLResponse:
    """Reloads the address: a link on another site led here, and browsers then send no session cookie."""
    policy = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'"
    return HTMLResponse(_GO_ON, headers={"Content-Security-Policy": policy})
