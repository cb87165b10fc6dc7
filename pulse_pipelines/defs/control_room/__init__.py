"""Control room: Dagster's web server behind Pulse's authentication, closed by default.

guard     checks on every request: Host, Origin, kind of request, caller
identity  tokens, sessions and trusted proxies: the caller's role
pages     Pulse's own pages: sign-in, sign-out, and continuing after a link from another site
server    Dagster's application behind the guard, which applies the role
"""
