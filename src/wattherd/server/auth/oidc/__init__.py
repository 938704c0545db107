"""Single sign-on: the word of an OpenID Connect issuer is taken for who a caller is.

What needs no library of the extra `oidc` is here and in `settings`; `sign_in` does the work.
"""

CALLBACK = "/login/oidc/callback"


class NotLoggedIn(Exception):
    """The login did not succeed; says why, as far as a person can do something about it."""
