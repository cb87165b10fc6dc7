"""Dagster's web server, closed by default: who may come in, from which pages, and what they may do.

guard     what every request goes through: Host, Origin, kind of request, who it is
identity  tokens, sessions and trusted proxies: the role of whoever asks
pages     the pages that are ours: signing in and out, and going on
server    Dagster's own application behind the guard, which knows the role
"""
